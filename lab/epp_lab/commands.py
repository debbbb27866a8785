"""The commands that this package adds to `epp`: words, the module that runs each, help, examples."""

COMMANDS = {
    "demo": (
        "epp_lab.demo.command",
        "faulty replicas behind Envoy with the picker and without: the verdict",
        """\
epp demo
epp demo --policy llm-d --against least-request --seed 7 --out demo-llm-d""",
    ),
    "bench": (
        "epp_lab.bench.command",
        "what requests cost here, goals beside measurements",
        """\
epp bench core --sizes 1k --endpoints 10,100,1000
epp bench server --address 127.0.0.1:9002 --pid 4711""",
    ),
    "capability measure": (
        "epp_lab.capability.measure",
        "ask engines lookups, check their answers",
        "epp capability measure llama=http://127.0.0.1:8001 --languages en ja --questions 20",
    ),
    "capability fit": (
        "epp_lab.capability.command",
        "how likely each model is right, from checked answers",
        "epp capability fit answers.jsonl --out capability.yaml",
    ),
    "lab compare": (
        "epp_lab.compare.command",
        "policies on one load, simulated or over HTTP",
        """\
epp lab compare --list
epp lab compare --workload art-chat --policy gorgo-ms,least-request,llm-d --seeds 8
epp lab compare --trace records --policy all
epp lab compare --workload art-chat --seconds 60 --over-http ours=http://127.0.0.1:8080""",
    ),
    "lab trace": (
        "epp_lab.compare.trace_stats",
        "lengths, reuse, gaps, what fits in which cache",
        """\
epp lab trace records
epp lab trace art-chat --seconds 600""",
    ),
    "lab advise": (
        "epp_lab.advise",
        "whole GPUs or prefill and decode apart, for a load",
        """\
epp lab advise --trace records --gpus 8 --engine fleet.json --kv-bytes-per-token 131072
epp lab advise --workload mooncake-chat --load 4 --gpus 32 --gpus-per-worker 4 --engine h100x4-70b""",
    ),
    "lab experiments": (
        "epp_lab.experiment",
        "run an experiment: cells, entries, seeds, table",
        """\
epp lab experiments --list
epp lab experiments pickers --seeds 2""",
    ),
    "lab calibrate": (
        "epp_lab.calibrate.command",
        "measure engines, and write the fleet like them",
        "epp lab calibrate h100=http://127.0.0.1:8001 --longest 16384 --out fleet.json",
    ),
    "lab sim": (
        "epp_lab.sim.serve",
        "run simulated replicas that speak OpenAI's API",
        "epp lab sim --replica name=a,port=8001 --replica name=b,port=8002,rtt_ms=100",
    ),
    "tune": (
        "epp_lab.tuner.command",
        "learn the policy's weights from live traffic, safely",
        """\
epp tune --config epp.yaml
epp tune --config epp.yaml --offline records
epp tune --config epp.yaml --search hillclimb
epp tune freeze --config epp.yaml --reason 'new engines'""",
    ),
    "learn": (
        "epp_lab.reward_model.command",
        "train the model of a learned policy from live traffic, safely",
        """\
epp learn --config epp.yaml
epp learn status --config epp.yaml""",
    ),
    "weights rollback": (
        "epp_lab.tuner.rollback",
        "earlier weights again, search frozen",
        "epp weights rollback 3 --config epp.yaml --reason 'p95 rose'",
    ),
}
GROUPS = {
    "capability": "how often models answer correctly: measure it, fit it",
    "lab": "comparisons, simulated replicas, experiments",
}
