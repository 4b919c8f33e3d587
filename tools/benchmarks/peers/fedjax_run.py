"""FedAvg with FedJAX on the work of a file, with its defaults: one process, XLA's threads.

    python3.11 -m venv ~/peers/fedjax
    ~/peers/fedjax/bin/pip install "fedjax==0.0.17" "jax==0.10.2" torch
    ~/peers/fedjax/bin/python tools/benchmarks/peers/fedjax_run.py WORK.pt --rounds 10 --processes 1

The last line of the output is a JSON object; "seconds" are those of each round, until its parameters are there.

`fedjax.algorithms.fed_avg` with its SGD, as in its examples, and its default backend of ``for_each_client``. Images
have their channels last, as in FedJAX's own networks. FedJAX fills the last batch of a client from its next shuffle, so
that a client's batches are all full: it takes as many steps, on some examples more.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from networks import Work, accuracy, arguments, load_work, memory, report
from torch import Tensor

jax.tree_map = jax.tree_util.tree_map  # FedJAX 0.0.17 still calls it by the name that jax has dropped
import fedjax  # noqa: E402
from fedjax.algorithms.fed_avg import federated_averaging  # noqa: E402

Parameters = dict[str, Any]


def to_jax(name: str, state: list[Tensor]) -> Parameters:
    """The parameters of the network, in jax's layout: products from the left, channels last."""
    values = [value.numpy() for value in state]
    if name == "mlp":
        first, first_bias, last, last_bias = values
        return {"w1": first.T, "b1": first_bias, "w2": last.T, "b2": last_bias}
    if name == "many-small":
        return {"w": values[0].T, "b": values[1]}
    c1, d1, c2, d2, w1, b1, w2, b2 = values
    flat = w1.reshape(-1, 64, 7, 7).transpose(2, 3, 1, 0).reshape(-1, len(w1))
    kernels = {"c1": c1.transpose(2, 3, 1, 0), "d1": d1, "c2": c2.transpose(2, 3, 1, 0), "d2": d2}
    return {**kernels, "w1": flat, "b1": b1, "w2": w2.T, "b2": b2}


def to_torch(name: str, params: Parameters) -> list[Tensor]:
    """The other way."""
    values = {key: np.array(value) for key, value in params.items()}
    if name == "mlp":
        found = [values["w1"].T, values["b1"], values["w2"].T, values["b2"]]
    elif name == "many-small":
        found = [values["w"].T, values["b"]]
    else:
        flat = values["w1"].reshape(7, 7, 64, -1).transpose(3, 2, 0, 1).reshape(-1, 64 * 49)
        kernels = [values["c1"].transpose(3, 2, 0, 1), values["d1"], values["c2"].transpose(3, 2, 0, 1), values["d2"]]
        found = [*kernels, flat, values["b1"], values["w2"].T, values["b2"]]
    return [torch.from_numpy(np.ascontiguousarray(value)) for value in found]


def logits(name: str, params: Parameters, inputs: jax.Array) -> jax.Array:
    """The network of `networks.NETWORKS` in jax."""
    if name == "cnn":
        for kernel, bias in (("c1", "d1"), ("c2", "d2")):
            dimensions = ("NHWC", "HWIO", "NHWC")
            maps = jax.lax.conv_general_dilated(inputs, params[kernel], (1, 1), "SAME", dimension_numbers=dimensions)
            window = (1, 2, 2, 1)
            inputs = jax.lax.reduce_window(
                jax.nn.relu(maps + params[bias]), -jnp.inf, jax.lax.max, window, window, "VALID"
            )
    inputs = inputs.reshape(len(inputs), -1)
    if name == "many-small":
        return inputs @ params["w"] + params["b"]
    return jax.nn.relu(inputs @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


def simulate(work: Work, rounds: int) -> tuple[list[float], float]:
    """Runs the rounds, and returns the seconds of each and the accuracy after the last."""

    def loss(params: Parameters, batch: Any, key: jax.Array) -> jax.Array:
        del key
        chances = jax.nn.log_softmax(logits(work.name, params, batch["x"]))
        return -jnp.take_along_axis(chances, batch["y"][:, None], 1).mean()

    clients = [
        fedjax.ClientDataset({"x": inputs.permute(0, 2, 3, 1).numpy(), "y": targets.numpy()})
        for inputs, targets in work.clients
    ]
    algorithm = federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(work.lr),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=work.batch_size, num_epochs=work.epochs),
    )
    state = algorithm.init(jax.tree_util.tree_map(jnp.asarray, to_jax(work.name, work.state)))
    seconds = []
    for number, participants in enumerate(work.participants[:rounds]):
        start = time.perf_counter()
        keys = jax.random.split(jax.random.PRNGKey(number), len(participants))
        chosen = [(str(i), clients[i], key) for i, key in zip(participants, keys, strict=True)]
        state, _ = algorithm.apply(state, chosen)
        jax.block_until_ready(state.params)
        seconds.append(time.perf_counter() - start)
    network = work.network()
    with torch.no_grad():
        for parameter, value in zip(network.parameters(), to_torch(work.name, state.params), strict=True):
            parameter.copy_(value)
    return seconds, accuracy(network, work)


def main() -> None:
    options = arguments(__doc__).parse_args()
    seconds, final = simulate(load_work(options.work), options.rounds)
    report("FedJAX", version("fedjax"), f"defaults, jax {jax.__version__}", seconds, memory(), final)


if __name__ == "__main__":
    main()
