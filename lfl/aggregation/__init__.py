"""Aggregators, which make one update of the clients' updates, and the server that steps along it."""

from lfl.aggregation.aggregator import Aggregator, MeanAggregator, Weighting
from lfl.aggregation.fedexp import FedExP
from lfl.aggregation.fedopt import FedAdagrad, FedAdam, FedYogi
from lfl.aggregation.normalized import NormalizedReaggregation
from lfl.aggregation.server import Server

__all__ = [
    "Aggregator",
    "FedAdagrad",
    "FedAdam",
    "FedExP",
    "FedYogi",
    "MeanAggregator",
    "NormalizedReaggregation",
    "Server",
    "Weighting",
]
