"""A request's path through its regions as one trace: Chrome's trace event format, which Perfetto opens.

Owns how records of several regions become one line of time. They are joined by the id of the origin's
decision. Each region tells its own clock's time; where that puts a region's part outside of the request, it
is moved to half a round trip after the forward, and says so. Records hold no arrival, so a request begins
with its decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from epp.records.schema import Joined

    Event = dict[str, Any]

#: Lines of a region, from top to bottom.
_LINES = _CLIENT, _PICKER, _FORWARD, _ENGINE = "client", "picker", "forward", "engine"
_TOLD = ("cause", "status", "attempts", "served", "prompt_tokens", "completion_tokens", "cached_tokens")


def hops_of(origin: str, requests: Iterable[Joined]) -> list[Joined]:
    """List what records of all regions hold of a request, by its first decision; that one comes first."""
    found: dict[str, Joined] = {}
    for request in requests:
        decision_id = request.decision["id"]
        if origin in (decision_id, request.decision.get("origin_decision")):
            found[decision_id] = request
    return sorted(found.values(), key=lambda each: ("origin_decision" in each.decision, each.decision["at"]))


def trace(hops: Sequence[Joined]) -> dict[str, Any]:
    """Draw a request's path; `hops` as `hops_of` lists them, one at least."""
    events: list[Event] = []
    region, shift_s, before = "", 0.0, hops[0]
    for each in hops:
        region = each.decision.get("origin_region", region)
    for number, hop in enumerate(hops, 1):
        if number > 1:
            shift_s, region = _shift_s(before, hop, shift_s), before.decision["regions"][_row(before)]
        region = region or hop.decision["regions"][_row(hop)]
        lines = [("process_name", 0, region or f"region {number}")]
        lines += [("thread_name", tid, line) for tid, line in enumerate(_LINES, 1)]
        named = ({"ph": "M", "name": what, "tid": tid, "args": {"name": name}} for what, tid, name in lines)
        for event in (*named, *_drawn(hop, number, forwarded=number < len(hops))):
            at_s = hop.decision["at"] + shift_s
            args = event.setdefault("args", {})
            if event["ph"] != "M":
                args["origin_decision"] = hops[0].decision.get("origin_decision", hops[0].decision["id"])
                args |= {"clock_moved_ms": round(shift_s * 1e3, 3)} if shift_s else {}
            events.append({"cat": "epp", "pid": number, **event, "ts": at_s * 1e6 + event.get("ts", 0.0)})
        before = hop
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _row(hop: Joined) -> int:
    """Find the row of who served, else of the chosen endpoint."""
    endpoints = hop.decision["endpoints"]
    served = "" if hop.outcome is None else hop.outcome["served"]
    row: int = endpoints.index(served) if served in endpoints else hop.decision["chosen"]
    return row


def _shift_s(before: Joined, hop: Joined, shift_s: float) -> float:
    """Compute by how much a region's clock is to be moved, where its part lies outside of the request."""
    sent_s, at_s = before.decision["at"] + shift_s, hop.decision["at"]
    e2e_ms = None if before.outcome is None else before.outcome["e2e_ms"]
    if sent_s <= at_s and (e2e_ms is None or at_s <= sent_s + e2e_ms / 1e3):
        return 0.0
    return float(sent_s + before.decision["signals"]["rtt_ms"][_row(before)] / 2e3 - at_s)


def _drawn(hop: Joined, number: int, *, forwarded: bool) -> Iterator[Event]:
    """Draw one region's part, times from its decision on: who asked, what was chosen, the forward or engine.

    Args:
        hop: its records.
        number: of the region on the way, from 1.
        forwarded: whether the next region has a part.
    """
    decision, outcome, row = hop.decision, hop.outcome, hop.decision["chosen"]

    def event(phase: str, line: str, name: str, at_ms: float = 0.0, **fields: Any) -> Event:
        return {"ph": phase, "tid": _LINES.index(line) + 1, "name": name, "ts": at_ms * 1e3, **fields}

    def span(line: str, name: str, at_ms: float, end_ms: float) -> Event:
        told = {} if outcome is None else {key: outcome[key] for key in _TOLD}
        args = {"decision": decision["id"], "endpoint": decision["endpoints"][_row(hop)], **told}
        return event("X", line, name, at_ms, dur=max(end_ms - at_ms, 0.0) * 1e3, args=args)

    pick = {name: decision[f"{name}s"][row] for name in ("endpoint", "region", "cost")}
    fallbacks = [decision["endpoints"][each] for each in decision["fallbacks"]]
    args = {"decision": decision["id"], "policy": decision["policy"], **pick, "fallbacks": fallbacks}
    yield event("i", _PICKER, "pick", s="t", args=args)
    if number > 1:
        yield event("f", _CLIENT, "hop", bp="e", id=number - 1)
    if forwarded:
        yield event("s", _FORWARD, "hop", id=number)
    if outcome is None or outcome["e2e_ms"] is None:
        return
    e2e_ms, ttft_ms = outcome["e2e_ms"], outcome["ttft_ms"]
    yield span(_CLIENT, "request" if number == 1 else "forwarded request", 0.0, e2e_ms)
    if ttft_ms is not None:
        yield event("i", _CLIENT, "first token", ttft_ms, s="p")
    if forwarded:
        yield span(_FORWARD, "forward", 0.0, e2e_ms)
    else:
        yield span(_ENGINE, "to first token", 0.0, e2e_ms if ttft_ms is None else ttft_ms)
        if ttft_ms is not None:
            yield span(_ENGINE, "decode", ttft_ms, e2e_ms)
