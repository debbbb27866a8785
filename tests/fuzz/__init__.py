"""Fuzzers, each bounded by a seed and a count: ``make fuzz``."""
