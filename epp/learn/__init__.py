"""The `epp learn` command: the learner's I/O, composed from `learner`, `tune` and `decide`."""
