"""From rows of updates to one server step."""

from lfl.aggregation.aggregator import Aggregator, MeanAggregator
from lfl.aggregation.normalized import NormalizedReaggregation
from lfl.aggregation.server import Server

__all__ = ["Aggregator", "MeanAggregator", "NormalizedReaggregation", "Server"]
