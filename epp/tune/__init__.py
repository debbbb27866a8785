"""The `epp tune` and `epp weights` commands: the tuner's I/O, composed from `tuner`, `decide` and `sim`."""
