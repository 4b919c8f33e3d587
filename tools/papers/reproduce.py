"""The small experiments of three papers, published numbers and claims beside ours.

    python -m tools.papers.reproduce ssf-table2                 # one table, 25,000 rounds, 3 seeds
    python -m tools.papers.reproduce all --jobs 2               # everything
    python -m tools.papers.reproduce all --quick                # a look at everything, in some minutes: no results

- ssf-table2, ssf-table3, ssf-table4: the toy problem of "Subspace Optimization for Efficient Federated Learning under
  Heterogeneous Data"; both readings of the control c, and both variants of FedSub.
- ssf-noiseless: the same with whole batches and no noise, where only the right control reaches the optimum.
- ssf-rates: its search for a learning rate, by SCAFFOLD.
- ssf-complement: SSF whose controls are cut to the round's subspace, beside SSF.
- ssf-rho, ssf-speedup: SSF's rounds to a gradient norm against the rank, and its norm at the end against the number of
  stochastic gradients.
- ssgd-fig2, ssgd-fig3: robust regression of "Communication-efficient Subspace Methods for High-dimensional Federated
  Learning": simulated uplink time to a small gradient, with time sharing and with channel sharing.
- ssgd-step-12.5, -6.25, -3.125, ssgd-squared, ssgd-std: the first of them with one step for all methods, and with other
  readings of the problem.
- srpfl-speedup: linear representations of "Straggler-Resilient Personalized Federated Learning": simulated time of
  FedRep and FedRep-SRPFL to a distance from the optimum, for 16 to 1,024 clients.
- srpfl-targets, srpfl-contraction, srpfl-stalls, srpfl-starts: what else its theory says of them: speed-ups at targets
  nearer to where all clients stall, the contraction a round, the distances where runs stall, and that of the start.
- srpfl-examples: the least number of examples of a client by which its first stage halves the distance.

Each number comes from runs of ``lfl fit`` with the files of ``configs/problems/`` and overrides. The output folder gets
the tables (CSV, Markdown), the figures (PNG), and every run: one whose settings have a result is not made again, so an
interrupted call goes on when it is repeated.
"""

from __future__ import annotations

import argparse
from typing import Protocol

from tools import CONFIGS
from tools.papers import srpfl, srpfl_examples, srpfl_theory, ssf, ssf_complement, ssf_rates, ssf_rho, ssf_speedup, ssgd
from tools.papers.claims import publish
from tools.papers.experiments import Laboratory, add_options, opened
from tools.papers.findings import Findings


class Target(Protocol):
    """A table or a figure of a paper."""

    def reproduce(self, laboratory: Laboratory, options: argparse.Namespace) -> Findings:
        """Make the runs; give what they have found.

        Args:
            laboratory: makes the runs.
            options: how many, as ``experiments.add_options`` has them.
        """


TARGETS: dict[str, Target] = {
    **ssf.TARGETS,
    **ssf_rates.TARGETS,
    **ssf_complement.TARGETS,
    **ssf_rho.TARGETS,
    **ssf_speedup.TARGETS,
    **ssgd.TARGETS,
    **srpfl.TARGETS,
    **srpfl_theory.TARGETS,
    **srpfl_examples.TARGETS,
}


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+", choices=[*TARGETS, "all"])
    add_options(parser, "reproduce", CONFIGS / "problems")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    with opened(options) as laboratory:
        for name in TARGETS if "all" in options.targets else dict.fromkeys(options.targets):
            publish(name, TARGETS[name].reproduce(laboratory, options), options)


if __name__ == "__main__":
    main()
