"""Writes a small data set of sequences, as Hugging Face's ``save_to_disk`` does: for language models without a network.

Usage: python -m tools.toy_text data/counting

Every user counts modulo 30 by a step of its own, from anywhere, for 8 to 20 numbers.
"""

import argparse

import datasets
import torch

VOCABULARY = 32
_MODULUS = 30


def write(folder: str, users: int = 12, train: int = 40, test: int = 10) -> None:
    """Write a training and a test set with ``train`` and ``test`` sequences of each user.

    Columns are ``input_ids``, ``attention_mask``, ``labels`` and ``user``.
    """
    draws = torch.Generator().manual_seed(0)
    splits = {"train": train, "test": test}
    datasets.disable_progress_bars()
    found = {name: datasets.Dataset.from_list(_rows(users, count, draws)) for name, count in splits.items()}
    datasets.DatasetDict(found).save_to_disk(folder)


def _rows(users: int, count: int, draws: torch.Generator) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for user in range(users):
        for _ in range(count):
            length = int(torch.randint(8, 21, (), generator=draws))
            start = int(torch.randint(_MODULUS, (), generator=draws))
            ids = [(start + place * (1 + user % 5)) % _MODULUS for place in range(length)]
            rows.append({"input_ids": ids, "attention_mask": [1] * length, "labels": ids, "user": f"user {user:02d}"})
    return rows


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="where to write it")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    write(options_of(None).folder)
