"""A tuner's life in virtual time: ``python -m epp.lab.demo.tuner`` (`make demo-tuner`).

Three simulated regions start with weights that are off. The tuner rehearses, tries its candidate live,
promotes it, watches it, finds nothing more and freezes; thresholds and evidence are those of production.
``--start defaults`` begins with the policy's own weights instead, and freezes without a promotion. Takes
minutes, and prints what happens.

What differs from a live tuner: rehearsals know the fleet as it is instead of calibrating it from records, the
clock stands still meanwhile, and they are shorter.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.table import Table

from epp.lab.compare.stats import percentile
from epp.lab.demo.example import example_parser, run_example
from epp.lab.tuner_life import BEGIN_WALL_S, HOME, Life, Rehearsals, defaults_of, rules_of
from epp.learn.tuner import machine

if TYPE_CHECKING:
    import argparse

    from epp.learn.tuner.state import State

POLICY = "gorgo-ms"
#: Prices prefill at a third of what is good, and the slower steps of others at four times. These two weights
#: are tuned, the others stay as configured: a small search finds what there is in one go.
START = {"prefill_weight": 1.0, "decode_weight": 4.0}
STRETCH_S = 3 * 3600.0
#: Of virtual time at most: four days.
STRETCHES = 32
SEED = 1
#: Requests of each measurement of a rehearsal.
WINDOW_REQUESTS = 1000


def main() -> int:
    """Run the demo: 0 after a freeze, and a promotion where the weights were off."""
    parser = example_parser("tuner", __doc__)
    add = parser.add_argument
    add("--measurements", type=int, default=40, help="of a rehearsal (%(default)s)")
    add("--recorded", type=int, default=6000, help="requests it is given (%(default)s)")
    add("--start", choices=("off", "defaults"), default="off", help="weights to begin with")
    return run_example(parser, show, out="demo-tuner-out")


def show(arguments: argparse.Namespace) -> int:
    """Let a tuner live, and print and write what became of it."""
    weights_off = arguments.start == "off"
    rules = rules_of(POLICY)
    rules = replace(rules, bounds={name: rules.bounds[name] for name in START})
    rehearsals = Rehearsals(
        POLICY,
        HOME.fleet,
        rules,
        seed=SEED,
        budget=arguments.measurements,
        recorded=arguments.recorded,
        window_requests=WINDOW_REQUESTS,
    )
    printed = 0

    def print_news(state: State) -> bool:
        nonlocal printed
        for note in life.notes[printed:]:
            moved = f"{note.before} -> {note.after}: " if note.before != note.after else ""
            print(f"{(note.at_wall_s - BEGIN_WALL_S) / 3600.0:6.2f} h  {moved}{note.reason}", flush=True)
        printed = len(life.notes)
        return state.phase == "frozen"

    life = Life(
        policy=POLICY,
        fleet=lambda _: HOME.fleet,
        load=lambda number: HOME.load(SEED * 1000 + number, STRETCH_S),
        state=machine.start(POLICY, START if weights_off else defaults_of(POLICY), rules, BEGIN_WALL_S),
        rules=rules,
        rehearse=rehearsals,
        stop=print_news,
        seed=SEED,
    )
    life.run(stretches=STRETCHES)
    story = arguments.out / "tuner.json"
    story.write_bytes(msgspec.json.encode({"history": life.state.history, "notes": life.notes}))
    Console().print(by_weights(life))
    promoted, demoted = (
        sum(change.how == how for change in life.state.history) for how in ("promoted", "demoted")
    )
    weights = ", ".join(f"{name} {value:.3g}" for name, value in life.state.incumbent.items())
    print(f"\n{promoted} promoted, {demoted} demoted; {life.state.phase}; weights in force: {weights}")
    print(f"Written: {story}")
    return 0 if life.state.phase == "frozen" and (promoted or not weights_off) else 1


def by_weights(life: Life) -> Table:
    """Lay out p95 under each of the weights that were in force, trials of others included."""
    table = Table("in force", "from h", "requests", "TTFT p95", "E2E p95")
    ends_wall_s = [*(change.at_wall_s for change in life.state.history[1:]), math.inf]
    for change, end_wall_s in zip(life.state.history, ends_wall_s, strict=True):
        answered = [
            s for s in life.samples if change.at_wall_s <= s.dispatched_wall_s < end_wall_s and s.answered
        ]
        ttft, e2e = (percentile([getattr(s, fact) for s in answered], 95) for fact in ("ttft_ms", "e2e_ms"))
        from_h = (change.at_wall_s - BEGIN_WALL_S) / 3600.0
        cells = (f"{from_h:.2f}", f"{len(answered):,}", f"{ttft:,.0f} ms", f"{e2e:,.0f} ms")
        table.add_row(f"{change.number} {change.how}", *cells)
    return table


if __name__ == "__main__":
    sys.exit(main())
