"""What a simulated window costs: ``python -m bench.simulator``.

CPU seconds of this process for windows of n, 2n and 4n requests at the same rate on three replicas, and their
ratios: 2 and 4 when the cost is linear. Loads are made beforehand and are not counted. Each row is the least
of several runs, the others being disturbed by more than the simulation.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

from epp.replay.workloads.art_chat import APR_5, generate
from epp.sim.engine_class import L40S_X2
from epp.sim.run import policy_names, run_window
from epp.sim.scenario import WindowOptions, regional_fleet

# Arrivals per second that make 7,000 requests in the published windows' 30 minutes.
RATE_RPS = 7_000 / 1_800


def measure(policy: str, duration_s: float, runs: int) -> tuple[int, float, int]:
    """Requests, least CPU seconds and steps of the loop of one window."""
    load = generate(replace(APR_5, rate_rps=RATE_RPS, duration_s=duration_s), 1)
    least_s, steps = float("inf"), 0
    for _ in range(runs):
        started_s = time.process_time()
        result = run_window(load, regional_fleet(L40S_X2), policy, options=WindowOptions(max_in_flight=64))
        least_s, steps = min(least_s, time.process_time() - started_s), result.events
    return len(load), least_s, steps


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", default="gorgo,least-request", help=f"of {', '.join(policy_names())}")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=30.0, help="length of the shortest window")
    args = parser.parse_args()
    print(f"{'policy':24} {'requests':>8} {'CPU s':>7} {'us/request':>10} {'steps':>8} {'ratio':>6}")
    for policy in args.policy.split(","):
        first_s = 0.0
        for factor in (1, 2, 4):
            count, cpu_s, steps = measure(policy, args.minutes * 60 * factor, args.runs)
            first_s = first_s or cpu_s
            each_us = cpu_s / count * 1e6
            row = f"{policy:24} {count:8} {cpu_s:7.2f} {each_us:10.0f} {steps:8} {cpu_s / first_s:6.2f}"
            print(row, flush=True)


if __name__ == "__main__":
    main()
