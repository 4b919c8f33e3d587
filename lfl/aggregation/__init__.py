"""Aggregators, which make one update of the clients' updates, and the server that steps along it."""

from lfl.aggregation.aggregator import Aggregator, MeanAggregator
from lfl.aggregation.normalized import NormalizedReaggregation
from lfl.aggregation.server import Server

__all__ = ["Aggregator", "MeanAggregator", "NormalizedReaggregation", "Server"]
