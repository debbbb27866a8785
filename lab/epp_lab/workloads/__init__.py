"""Generators of load: parameters and a seed in, trace requests out."""
