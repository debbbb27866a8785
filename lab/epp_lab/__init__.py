"""Learn, compare, simulate and experiment; never imported by what serves."""
