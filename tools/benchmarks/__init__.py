"""Benchmarks of `lfl`: how fast it is, what a round costs, and how that grows."""
