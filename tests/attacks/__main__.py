"""`python -m tests.attacks`: each attack against a picker with peers beside it that behave, and a verdict.

Attackers are niced processes of their own on loopback: what is measured is what the picker does, not the CPU
that they take from it. The machine's noise is in all figures; the row "none" is the same without an attack.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys

from tests.attacks.checks import CHECKS, Check
from tests.attacks.floods import FLOODS, Flood
from tests.attacks.peers import PEER_ATTACKS, PeerAttack
from tests.attacks.pickers import BEHIND, alone, behind, together
from tests.attacks.rig import BUDGET_BYTES, CONSTANT_BYTES, MIB, SLOW_MS, Rig, Row

#: 99th percentiles in ms, by probe.
LIMITS_MS = {"same": 250.0, "other": 100.0, "ready": 100.0}
RECOVERY_S = 1.0


def memory_problem(row: Row) -> str:
    """How the picker's memory was exceeded, ``""`` when it was not."""
    most = BUDGET_BYTES + CONSTANT_BYTES
    return f"memory {row.rss_bytes[1] // MIB} of {most // MIB} MiB" if row.rss_bytes[1] > most else ""


def problems(row: Row) -> list[str]:
    """Which limits an attack broke."""
    found = [memory_problem(row), f"cut short: {row.cut_short}" if row.cut_short else ""]
    if "chat" in row.ms:
        late_s = max((late_s for late_s, why in row.failures if why.startswith("chat")), default=0.0)
        found.append(f"failed {late_s:.1f} s after" if late_s > RECOVERY_S else "")
    else:
        for probe, limit_ms in LIMITS_MS.items():
            ms = row.percentile(probe, 99)
            found.append("" if ms < limit_ms else f"{probe} {ms:.0f} ms")
        found.append(f"{len(row.failures)} failed" if row.failures else "")
        found.append(f"recovery {row.recovery_s:.1f} s" if row.recovery_s > RECOVERY_S else "")
    return [problem for problem in found if problem]


def header(row: Row) -> str:
    """Of the table."""
    probes = "".join(f"{name + ' p50/p99/max ms':>24}" for name in row.ms)
    return f"{'attack':20}{probes}  failed  RSS MiB      CPU  after s    made   ended  verdict"


def line(row: Row) -> str:
    """A row as text."""
    cells = ([row.percentile(probe, q) for q in (50, 99, 100)] for probe in row.ms)
    calls = "".join(
        f"{'/'.join('-' if math.isnan(ms) else f'{ms:.0f}' for ms in cell):>24}" for cell in cells
    )
    before, most = (size // MIB for size in row.rss_bytes)
    return (
        f"{row.name:20}{calls}{len(row.failures):8}{before:5} > {most:<5}{row.cpu:6.0%}{row.recovery_s:9.2f}"
        f"{row.tally.get('made', 0):8}{row.tally.get('ended', 0):8}  {'; '.join(problems(row)) or 'ok'}"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.attacks", description=__doc__)
    parser.add_argument("--only", default="", help="names of attacks, joined by commas; all for none")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each attack (%(default)s)")
    parser.add_argument("--connections", type=int, default=8, help="of the attackers (%(default)s)")
    parser.add_argument("--tls", action="store_true", help="the picker's listener speaks TLS")
    parser.add_argument("--behind", choices=BEHIND, help="chats through this Envoy instead of streams")
    parser.add_argument("--list", action="store_true", help="print the attacks and end")
    return parser.parse_args()


def main() -> int:
    """Attack, print, judge; 1 where a limit was broken."""
    arguments = _arguments()
    attacks: dict[str, Flood | PeerAttack | Check] = {**FLOODS}
    if not arguments.behind:
        attacks |= {**PEER_ATTACKS, **CHECKS}
    wanted = arguments.only.split(",") if arguments.only else list(attacks)
    if unknown := [name for name in wanted if name not in attacks]:
        sys.exit(f"no attack {', '.join(unknown)}; there are {', '.join(attacks)}")
    if arguments.list:
        print("\n".join(f"{name:20}{attack.what}" for name, attack in attacks.items()))
        return 0
    checks = [name for name in wanted if name in CHECKS]
    names = [name for name in wanted if name not in CHECKS]
    print(__doc__)
    rows: list[Row] = []

    def attack(rig: Rig, name: str) -> None:
        # On a machine that is slow without any attack, what is usual there.
        usual_ms = max(row.percentile(probe, 100) for row in rows[:1] for probe in row.ms) if rows else 0.0
        row = rig.run(
            name,
            seconds=arguments.seconds,
            connections=arguments.connections,
            slow_ms=max(SLOW_MS, 2 * usual_ms),
        )
        print(line(row) if rows else f"{header(row)}\n{line(row)}", flush=True)
        rows.append(row)
        for late_s, why in row.failures[-3:]:
            print(f"{'':20}{late_s:+.2f} s {why}", flush=True)

    def attack_all(rig: Rig) -> None:
        for name in ["", *names]:
            attack(rig, name)

    if not names:
        pass
    elif arguments.behind:
        asyncio.run(behind(arguments.behind, attack_all))
    else:
        for name in ["", *names]:
            with together() if name in PEER_ATTACKS else alone(tls=arguments.tls) as rig:
                attack(rig, name)
    broken = [row.name for row in rows if problems(row)]
    for name in checks:
        figure, problem = CHECKS[name].run()
        print(f"{name:20}{figure}  {problem or 'ok'}", flush=True)
        broken += [name] if problem else []
    print(f"{len(broken)} of {len(rows) + len(checks)} broke a limit: {', '.join(broken) or 'none'}")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
