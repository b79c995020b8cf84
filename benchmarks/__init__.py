"""Comparisons with torch's own ways; `python -m benchmarks kernels`."""
