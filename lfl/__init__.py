"""Federated learning on PyTorch Lightning and Fabric."""

__version__ = "0.1.0"
