"""The experiments, a module each with its `EXPERIMENT`."""
