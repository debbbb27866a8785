"""The commands that this package adds to `epp`: words, the module that runs each, a line of help."""

COMMANDS = {
    "demo": ("epp_lab.demo.command", "faulty replicas behind Envoy with the picker and without: the verdict"),
    "bench": ("epp_lab.bench.command", "what requests cost here, goals beside measurements"),
    "capability measure": ("epp_lab.capability.measure", "ask engines lookups, check their answers"),
    "capability fit": (
        "epp_lab.capability.command",
        "how likely each model is right, from checked answers",
    ),
    "lab compare": ("epp_lab.compare.command", "policies on one load, simulated or over HTTP"),
    "lab trace": ("epp_lab.compare.trace_stats", "lengths, reuse, gaps, what fits in which cache"),
    "lab experiments": ("epp_lab.experiment", "run an experiment: cells, entries, seeds, table"),
    "lab calibrate": ("epp_lab.calibrate.command", "measure engines, and write the fleet like them"),
    "lab sim": ("epp_lab.sim.serve", "run simulated replicas that speak OpenAI's API"),
    "tune": ("epp_lab.tuner.command", "learn the policy's weights from live traffic, safely"),
    "learn": (
        "epp_lab.reward_model.command",
        "train the model of a learned policy from live traffic, safely",
    ),
    "weights rollback": ("epp_lab.tuner.rollback", "earlier weights again, search frozen"),
}
GROUPS = {
    "capability": "how often models answer correctly: measure it, fit it",
    "lab": "comparisons, simulated replicas, experiments",
}
