"""Algorithms by hand, in plain PyTorch: what `lfl` must equal."""
