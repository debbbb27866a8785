"""Run by a tree's interpreter: decides generated conversations and prints a digest of every bit of it."""

from __future__ import annotations

import hashlib
import random
import struct

from epp.bench.prompts import conversation
from epp.bench.rig import Rig, request
from epp.compiled import core
from epp.prompt.usage import Usage

#: Of an endpoint: a few prompts, so that the index has to evict.
_CACHE_TOKENS = 9_000


def told(decision: object) -> bytes:
    """All of a decision: numbers as their bytes."""
    view, ranking = decision.fleet, decision.ranking  # type: ignore[attr-defined]
    words = (
        decision.request,  # type: ignore[attr-defined]
        decision.chosen,  # type: ignore[attr-defined]
        decision.fallbacks,  # type: ignore[attr-defined]
        decision.tied,  # type: ignore[attr-defined]
        view.endpoints,
        sorted(view.unknown),
        sorted(ranking.terms),
    )
    columns = [view.block.tobytes(), ranking.costs.tobytes()]
    columns += [ranking.terms[name].tobytes() for name in sorted(ranking.terms)]
    return repr(words).encode() + b"".join(columns)


def main() -> None:
    """Some hundred requests on fleets of many sizes; first tokens, usage and ends come in an order of their own."""
    digest = hashlib.sha256()
    fleets = (("gorgo", 3), ("gorgo-ms", 5), ("laar", 4), ("gorgo", 40), ("gorgo-ms", 70), ("laar", 12))
    for policy, endpoints in fleets:
        rig, chance, open_ids = Rig(endpoints, policy=policy), random.Random(endpoints), list[str]()
        for slot, _ in rig.picker.fleet.members:
            rig.index.set_capacity(slot, _CACHE_TOKENS)
        for number in range(30):
            for body in conversation(chance.choice((60, 700, 4_000)), number % 11):
                parsed = rig.parse(request(body))
                ask = rig.ask(parsed, rig.measure(parsed), len(body))
                decision = rig.picker.pick(ask, rig.clock.mono_s(), 1.7e9)
                digest.update(told(decision))
                open_ids.append(decision.id)
                rig.clock.advance(chance.random())
                one = open_ids[chance.randrange(len(open_ids))]
                now_s = rig.clock.mono_s()
                match chance.randrange(3):
                    case 0:
                        rig.picker.first_token(one, now_s)
                    case 1:
                        rig.picker.usage(one, Usage(prompt_tokens=900, cached_tokens=chance.randrange(900)))
                    case _:
                        outcome = rig.picker.end(one, "stream-end", now_s)
                        ms = struct.pack("dd", outcome.ttft_ms, outcome.e2e_ms) if outcome else b""
                        digest.update(ms)
    print(core(), digest.hexdigest())


if __name__ == "__main__":
    main()
