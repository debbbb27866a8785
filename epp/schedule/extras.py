"""Columns that a policy asks for beyond a snapshot's own (`epp.policies.base.Policy.asks`).

Owns who had cold requests, in order, and which endpoints sessions are bound to. All else is read of the
request, the pool and the engines' last metrics.
"""

from __future__ import annotations

from base64 import b64decode
from typing import TYPE_CHECKING

import numpy as np

from epp.policies.base import PEER, PRICE, ROOM
from epp.policies.llm_d_plugins import (
    COLD_PLACE,
    GPU,
    LORA,
    PRIORITY,
    SESSION,
    TOKEN,
    TPOT_SLO,
    TTFT_SLO,
)
from epp.types import PEER_CLASS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from epp.signals.fleet import Fleet
    from epp.signals.metrics_text import Adapters
    from epp.types import Floats, RequestInfo, Slots, Snapshot

#: Headers of latency objectives in ms, the newer name first.
_HEADERS = {
    TTFT_SLO: ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms"),
    TPOT_SLO: ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms"),
}
_REGIONS = frozenset({ROOM, PEER, PRICE})


class Extras:
    """Make the columns.

    Args:
        asks: their names.

    Attributes:
        headers: request headers that they are made of.
    """

    def __init__(self, asks: Collection[str]) -> None:
        self._asks = sorted(asks)
        objectives = {header for name in asks for header in _HEADERS.get(name, ())}
        labels = {name[6:].partition("=")[0] for name in asks if name.startswith("label:")}
        sources = {part for name in self._asks if name.startswith(SESSION) for part in _sources(name)}
        sessions = {"cookie" if source.startswith("cookie:") else source for source in sources}
        #: Headers that tell clients their endpoint, in its encoded form.
        self.tokens = frozenset(name.removeprefix(TOKEN) for name in self._asks if name.startswith(TOKEN))
        self.headers = frozenset(objectives | labels | sessions | self.tokens)
        #: Column -> session -> endpoint and when it was last used, the oldest first.
        self._bound: dict[str, dict[str, tuple[str, float]]] = {
            name: {} for name in self._asks if name.startswith(SESSION)
        }
        #: Column -> endpoints that had cold requests, the oldest first.
        self._cold: dict[str, dict[str, None]] = {
            name: {} for name in self._asks if name.startswith(COLD_PLACE)
        }

    def columns(
        self, request: RequestInfo, fleet: Fleet, seen: Snapshot, slots: Slots, now_s: float
    ) -> Mapping[str, Floats]:
        """Make a column for each name, in the order of the slots, of which the snapshot is."""
        return {
            name: _of_regions(name, request, fleet, seen, slots)
            if name in _REGIONS
            else self._column(name, request, fleet, slots.tolist(), now_s)
            for name in self._asks
        }

    def _column(
        self, name: str, request: RequestInfo, fleet: Fleet, slots: list[int], now_s: float
    ) -> Floats:
        count = len(slots)
        if name == GPU:
            return np.fromiter((fleet.engine.gpu(slot, now_s) for slot in slots), np.float64, count)
        if name in self._cold:
            places = {address: place for place, address in enumerate(self._cold[name])}
            found = (places.get(fleet.address_of(slot) or "", -1) for slot in slots)
            return np.fromiter(found, np.float64, count)
        if name == LORA:
            scores = (lora_score(fleet.engine.adapters(slot), request.model) for slot in slots)
            return np.fromiter(scores, np.float64, count)
        if name == PRIORITY:
            return np.full(count, float(request.priority))
        if name in _HEADERS:
            told = next((request.headers[key] for key in _HEADERS[name] if key in request.headers), "")
            return np.full(count, _number(told))
        if name.startswith((TOKEN, SESSION)):
            address = self._address(name, request)
            return np.fromiter((fleet.address_of(slot) == address for slot in slots), np.float64, count)
        header, _, label = name.removeprefix("label:").partition("=")
        if not (wanted := request.headers.get(header)):
            return np.zeros(count)
        labels = fleet.labels(label)
        return np.fromiter((labels.get(slot) == wanted for slot in slots), np.float64, count)

    def _address(self, name: str, request: RequestInfo) -> str:
        """Return the endpoint that a request's session is bound to, empty for none."""
        if name in self._bound:
            return self._bound[name].get(_session(name, request), ("", 0.0))[0]
        try:
            return b64decode(request.headers.get(name.removeprefix(TOKEN), "")).decode()
        except ValueError:
            return ""

    def picked(self, address: str, request: RequestInfo, fleet: Snapshot, now_s: float) -> None:
        """Note where a request went, by the snapshot of its decision."""
        for name, bound in self._bound.items():
            while bound and now_s - next(iter(bound.values()))[1] > float(name.split(":")[1]):
                del bound[next(iter(bound))]
            session = _session(name, request)
            before = bound.get(session, (address,))[0]
            if session and (before == address or not fleet.extra[name].any()):
                bound.pop(session, None)
                bound[session] = (address, now_s)
        if fleet.cached_tokens.any():
            return
        for name, order in self._cold.items():
            order.pop(address, None)
            order[address] = None
            if len(order) > int(name.partition(":")[2]):
                del order[next(iter(order))]


def _of_regions(name: str, request: RequestInfo, fleet: Fleet, seen: Snapshot, slots: Slots) -> Floats:
    """Make a column of what peer regions differ in; without them there are no peers and no prices."""
    remote = fleet.remote
    if name == ROOM:
        return fleet.places(slots)
    if remote is None:
        return np.zeros(len(slots))
    if name == PEER:
        return np.array([each == PEER_CLASS for each in seen.engine_classes], np.float64)
    limit, sequences = request.max_output_tokens, request.sequences
    answer_tokens = fleet.answers.expected(request.model, limit, sequences)
    return remote.prices_ms(request, slots, seen.uncached_tokens, answer_tokens)


def _sources(name: str) -> list[str]:
    return name.split(":", 2)[2].split(",")


def _session(name: str, request: RequestInfo) -> str:
    """Find the id of a request's session, by the sources that a column's name has."""
    for source in _sources(name):
        header, _, cookie = source.partition(":")
        told = request.headers.get(header, "")
        if cookie:
            pairs = (pair.strip().partition("=") for pair in told.split(";"))
            told = next((value for key, _, value in pairs if key == cookie), "")
        if told := told.strip():
            return told
    return ""


def lora_score(adapters: Adapters, model: str) -> float:
    """Score an endpoint for an adapter (`epp.policies.llm_d_scorers.LoraScorer`)."""
    if model in adapters.running:
        return 1.0
    if len(adapters.running) + len(adapters.waiting) < adapters.most:
        return 0.8
    return 0.6 if model in adapters.waiting else 0.0


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0.0 <= value < 1e12 else 0.0
