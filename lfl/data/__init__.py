"""Data of N clients: sources, partitioners, batch transforms, and the data module that joins them."""

from lfl.data.ag_news_source import AGNewsSource
from lfl.data.base import Batch, FederatedData
from lfl.data.client_changes import ClientChange, ClientColour, ClientLabelNoise, ClientNoise, ClientRotation
from lfl.data.clustered_partitioner import ClusteredDirichletPartitioner
from lfl.data.collate import PadCollate
from lfl.data.datamodule import FederatedDataModule
from lfl.data.examples import TensorData
from lfl.data.flower_partitioner import FlowerPartitioner
from lfl.data.huggingface_source import HuggingFaceSource
from lfl.data.leaf_source import LEAFSource
from lfl.data.matching import match_label_mix
from lfl.data.partition import IndexSets, Partition
from lfl.data.partitioners import (
    ClassesPerClientPartitioner,
    DirichletPartitioner,
    EqualDirichletPartitioner,
    IIDPartitioner,
    NaturalPartitioner,
    Partitioner,
    QuantitySkewPartitioner,
    ShardPartitioner,
)
from lfl.data.sent140_source import Sent140Source
from lfl.data.size_partitioners import LogNormalPartitioner, UniformSizesPartitioner
from lfl.data.sources import MNIST5000, DatasetSource, Digits, Source
from lfl.data.tiny_imagenet_source import TinyImageNetSource
from lfl.data.torchvision_source import TorchvisionSource
from lfl.data.transforms import BatchTransform, Normalize, RandomCrop, RandomHorizontalFlip, ToFloat

__all__ = [
    "MNIST5000",
    "AGNewsSource",
    "Batch",
    "BatchTransform",
    "ClassesPerClientPartitioner",
    "ClientChange",
    "ClientColour",
    "ClientLabelNoise",
    "ClientNoise",
    "ClientRotation",
    "ClusteredDirichletPartitioner",
    "DatasetSource",
    "Digits",
    "DirichletPartitioner",
    "EqualDirichletPartitioner",
    "FederatedData",
    "FederatedDataModule",
    "FlowerPartitioner",
    "HuggingFaceSource",
    "IIDPartitioner",
    "IndexSets",
    "LEAFSource",
    "LogNormalPartitioner",
    "NaturalPartitioner",
    "Normalize",
    "PadCollate",
    "Partition",
    "Partitioner",
    "QuantitySkewPartitioner",
    "RandomCrop",
    "RandomHorizontalFlip",
    "Sent140Source",
    "ShardPartitioner",
    "Source",
    "TensorData",
    "TinyImageNetSource",
    "ToFloat",
    "TorchvisionSource",
    "UniformSizesPartitioner",
    "match_label_mix",
]
