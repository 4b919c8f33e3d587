"""Aggregators, which make one update of the clients' updates, and the server that steps along it."""

from lfl.aggregation.accelerated import ThreeSequenceSGD
from lfl.aggregation.aggregator import Aggregator, MeanAggregator, Weighting
from lfl.aggregation.fedexp import FedExP
from lfl.aggregation.fedopt import FedAdagrad, FedAdam, FedYogi
from lfl.aggregation.gathering import GatheringAggregator
from lfl.aggregation.geometric_median import GeometricMedian
from lfl.aggregation.krum import Krum
from lfl.aggregation.median import CoordinateMedian
from lfl.aggregation.norm_clipping import MedianNormClipping, NormClipping
from lfl.aggregation.normalized import NormalizedReaggregation
from lfl.aggregation.server import Server
from lfl.aggregation.staleness import (
    ConstantStaleness,
    FedAsync,
    FedBuff,
    HingeStaleness,
    PolynomialStaleness,
    Staleness,
)
from lfl.aggregation.trimmed_mean import TrimmedMean

__all__ = [
    "Aggregator",
    "ConstantStaleness",
    "CoordinateMedian",
    "FedAdagrad",
    "FedAdam",
    "FedAsync",
    "FedBuff",
    "FedExP",
    "FedYogi",
    "GatheringAggregator",
    "GeometricMedian",
    "HingeStaleness",
    "Krum",
    "MeanAggregator",
    "MedianNormClipping",
    "NormClipping",
    "NormalizedReaggregation",
    "PolynomialStaleness",
    "Server",
    "Staleness",
    "ThreeSequenceSGD",
    "TrimmedMean",
    "Weighting",
]
