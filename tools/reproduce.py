"""The small experiments of three papers, published numbers and claims beside ours.

    python tools/reproduce.py ssf-table2                 # one table, 25,000 rounds, 3 seeds
    python tools/reproduce.py all --jobs 2               # everything
    python tools/reproduce.py all --quick                # a look at everything, in about a minute: no results

- ssf-table2, ssf-table3, ssf-table4: the toy problem of "Subspace Optimization for Efficient Federated Learning under
  Heterogeneous Data"; both readings of the control c, and both variants of FedSub.
- ssf-noiseless: the same with whole batches and no noise, where only the right control reaches the optimum.
- ssgd-fig2, ssgd-fig3: robust regression of "Communication-efficient Subspace Methods for High-dimensional Federated
  Learning": simulated uplink time to a small gradient, with time sharing and with channel sharing.
- srpfl-speedup: linear representations of "Straggler-Resilient Personalized Federated Learning": simulated time of
  FedRep and FedRep-SRPFL to a distance from the optimum, for 16 to 1,024 clients.

Each number comes from runs of ``lfl fit`` with the files of ``configs/problems/`` and overrides. The output folder gets
the tables and the claims (CSV, Markdown), the figures (PNG), and a small result file of every run: a run whose settings
have a result is not made again, so an interrupted call goes on when it is repeated.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

import reproduce_srpfl
import reproduce_ssf
import reproduce_ssgd
import torch
from claims import tabulate_claims
from experiments import Laboratory
from reproduce_srpfl import SpeedupFigure
from reproduce_ssf import ErrorTable
from reproduce_ssgd import TimeFigure

TARGETS: dict[str, ErrorTable | TimeFigure | SpeedupFigure] = {
    **reproduce_ssf.TARGETS,
    **reproduce_ssgd.TARGETS,
    **reproduce_srpfl.TARGETS,
}


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+", choices=[*TARGETS, "all"])
    parser.add_argument("--seeds", type=int, help="runs of every method; by default those of the target")
    parser.add_argument("--rounds", type=int, help="of every run, at most; by default those of the target")
    parser.add_argument("--quick", action="store_true", help="few rounds and seeds: everything once, no results")
    parser.add_argument("--jobs", type=int, default=1, help="processes, of one thread each")
    parser.add_argument("--reuse", action=argparse.BooleanOptionalAction, default=True, help="take earlier results")
    parser.add_argument("--configs", type=Path, default=Path(__file__).parent.parent / "configs" / "problems")
    parser.add_argument("--output", type=Path, help="runs/reproduce, or runs/reproduce_quick")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    torch.set_num_threads(1)
    output = options.output or Path("runs/reproduce_quick" if options.quick else "runs/reproduce")
    tell = partial(print, file=sys.stderr, flush=True)
    laboratory = Laboratory(options.configs, output, options.jobs, options.reuse, tell)
    try:
        for name in TARGETS if "all" in options.targets else dict.fromkeys(options.targets):
            reproduce(name, laboratory, options)
    finally:
        laboratory.close()


def reproduce(name: str, laboratory: Laboratory, options: argparse.Namespace) -> None:
    """One target: its runs, its table and claims on the screen and in files, its figure."""
    target, figure = TARGETS[name], laboratory.output / f"{name}.png"
    table, found = target.reproduce(laboratory, options.seeds, options.rounds, options.quick, figure)
    claims = tabulate_claims(target.title, found)
    for part, suffix in ((table, ""), (claims, "-claims")):
        if options.quick or options.rounds:
            part.notes.append("NOT A REPRODUCTION: the runs were cut short, so neither numbers nor claims count.")
        part.write(laboratory.output, name + suffix)
        part.show()


if __name__ == "__main__":
    main()
