# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # From data to a figure
#
# Three methods on the digits of scikit-learn, dealt to twenty clients by Dirichlet(0.1), two seeds each; one figure of
# accuracy against bytes. A script as it is, a notebook by `jupytext --to notebook three_methods.py`.

# %%
from pathlib import Path

import lightning
from matplotlib.figure import Figure

from lfl import FederatedTrainer
from lfl.callbacks import Scaffold, TopK
from lfl.data import Digits, DirichletPartitioner, FederatedDataModule
from lfl.models import MLP, Classifier
from lfl.report import load

ROUNDS = 20


def data(seed: int) -> FederatedDataModule:
    """Twenty clients; the partition has the seed."""
    return FederatedDataModule(
        Digits(), partitioner=DirichletPartitioner(0.1), num_clients=20, batch_size=10, seed=seed
    )


# %% [markdown]
# Who has which digits? A row is a client.

# %%
dealt = data(0)
dealt.setup("fit")
print(dealt.label_counts())

# %% [markdown]
# A method is a list of callbacks. Every run makes a folder below `runs/`.

# %%
METHODS = {"FedAvg": [], "SCAFFOLD": [Scaffold], "Top-k": [lambda: TopK(0.05)]}

for stack in METHODS.values():
    for seed in (0, 1):
        lightning.seed_everything(seed, verbose=False)
        model = Classifier(MLP(in_features=64, hidden=[32]), lr=0.1)
        trainer = FederatedTrainer(
            max_rounds=ROUNDS,
            check_val_every_n_rounds=2,
            callbacks=[make() for make in stack],
            seed=seed,
            enable_progress_bar=False,
        )
        trainer.fit(model, data(seed))

# %% [markdown]
# All numbers of all runs, as one data frame: a row for each run, round and metric.

# %%
runs = load("runs")
print(runs.columns.tolist())
wide = runs.pivot_table(index=["group", "seed", "round"], columns="metric", values="value", observed=True)
means = wide[["val_acc", "comm/total_up_bytes"]].dropna().groupby(["group", "round"], observed=True).mean()
print(means.groupby("group", observed=True).last())

# %%
figure = Figure(figsize=(4, 3), layout="constrained")
axes = figure.subplots()
for name, curve in means.groupby("group", observed=True):
    axes.plot(curve["comm/total_up_bytes"] / 1e6, 100 * curve["val_acc"], label=str(name))
axes.set(xlabel="MB sent by all clients", ylabel="test accuracy, %", xscale="log")
axes.legend(fontsize="small")
figure.savefig("three_methods.pdf")
print(Path("three_methods.pdf").stat().st_size, "bytes")
