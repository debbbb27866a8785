"""Make the columns that llm-d's plugins read beyond a snapshot's own.

Owns who had cold requests, in order, which endpoints sessions are bound to, which media each endpoint had
last, and further prefix indexes. All else is read of the request, the pool and the engines' last metrics.
"""

from __future__ import annotations

import sys
from base64 import b64decode
from typing import TYPE_CHECKING

import numpy as np

from epp.llmd.policies.plugins import (
    GPU,
    LORA,
    Admitted,
    ColdPlace,
    Column,
    Indexed,
    Label,
    Media,
    ModelLabel,
    Session,
    Token,
    Told,
    told_model,
)
from epp.policies.base import ExtraColumns
from epp.prefix_cache.index import PrefixIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from epp.signals.datastore import Datastore
    from epp.signals.metrics_text import Adapters
    from epp.types import Floats, RequestInfo, Slots, Snapshot


#: Endpoints whose media are remembered: more than a pool has, so that those that left are forgotten.
_MOST_ENDPOINTS = 2000


class PluginColumns(ExtraColumns):
    """Make the columns.

    Args:
        columns: which.
    """

    def __init__(self, columns: Collection[Column]) -> None:
        self._columns = sorted(columns, key=lambda column: column.name)
        self.headers = frozenset(header for column in columns for header in column.headers)
        self.tokens = frozenset(each.headers[0] for each in columns if isinstance(each, Token))
        #: Session -> endpoint and when it was last used, the oldest first.
        self._bound: dict[Session, dict[str, tuple[str, float]]] = {
            each: {} for each in self._columns if isinstance(each, Session)
        }
        #: Endpoints that had cold requests, the oldest first.
        self._cold: dict[ColdPlace, dict[str, None]] = {
            each: {} for each in self._columns if isinstance(each, ColdPlace)
        }
        #: Media that each endpoint decoded, the oldest first, of endpoints and of media.
        self._media: dict[Media, dict[str, dict[str, None]]] = {
            each: {} for each in self._columns if isinstance(each, Media)
        }
        #: Further indexes, and the number in them of each endpoint, the oldest first.
        self._indexes = {
            each: PrefixIndex(each.capacity_tokens, sys.maxsize)
            for each in self._columns
            if isinstance(each, Indexed)
        }
        self._numbers: dict[str, int] = {}

    def columns(
        self, request: RequestInfo, datastore: Datastore, seen: Snapshot, slots: Slots, now_s: float
    ) -> Mapping[str, Floats]:
        """Make each column by name."""
        return {each.name: self._column(each, request, datastore, slots, now_s) for each in self._columns}

    def _column(
        self, column: Column, request: RequestInfo, datastore: Datastore, slots: Slots, now_s: float
    ) -> Floats:
        match column:
            case Told():
                told = (request.headers[key] for key in column.headers if key in request.headers)
                return np.full(len(slots), _number(next(told, "")))
            case Label():
                wanted, labels = request.headers.get(column.headers[0]), datastore.labels(column.label)
                return _by_slot(slots, lambda slot: bool(wanted) and labels.get(slot) == wanted)
            case Admitted():
                endpoints = datastore.endpoints(slots)
                return np.array([column.admits(each.labels) for each in endpoints], np.float64)
            case Indexed():
                names = [datastore.address_of(slot) or "" for slot in slots.tolist()]
                return self._cached(self._indexes[column], request, names)
            case ModelLabel():
                wanted, labels = told_model(column.headers, request), datastore.labels(column.label)
                return _by_slot(slots, lambda slot: labels.get(slot) == wanted)
            case ColdPlace():
                places = {address: place for place, address in enumerate(self._cold[column])}
                return _by_slot(slots, lambda slot: places.get(datastore.address_of(slot) or "", -1))
            case Media():
                asked, known = frozenset(request.media), self._media[column]
                return _by_slot(
                    slots,
                    lambda slot: (
                        len(asked & known.get(datastore.address_of(slot) or "", {}).keys())
                        / max(len(asked), 1)
                    ),
                )
            case Token() | Session():
                address = self._address(column, request)
                return _by_slot(slots, lambda slot: datastore.address_of(slot) == address)
        if column == GPU:
            return _by_slot(slots, lambda slot: datastore.engine.gpu(slot, now_s))
        if column == LORA:
            return _by_slot(slots, lambda slot: lora_score(datastore.engine.adapters(slot), request.model))
        return np.full(len(slots), float(request.priority))

    def _cached(self, index: PrefixIndex, request: RequestInfo, names: list[str]) -> Floats:
        """Look a request's prompts up in an index; nothing is cached where nothing was sent."""
        known = np.array([name in self._numbers for name in names])
        numbers = np.array([self._numbers.get(name, 0) for name in names], np.intp)
        found = [index.match(prompt).cached_tokens(numbers) for prompt in (request, *request.more)]
        return np.where(known, sum(found), 0.0)

    def _index(self, address: str, request: RequestInfo) -> None:
        """Note in every index what an endpoint is sent."""
        number = self._numbers.pop(address, None)
        if number is None and len(self._numbers) < _MOST_ENDPOINTS:
            number = len(self._numbers)
        elif number is None:
            number = self._numbers.pop(next(iter(self._numbers)))
            for index in self._indexes.values():
                index.forget(number)
        self._numbers[address] = number
        for index in self._indexes.values():
            for prompt in (request, *request.more):
                index.insert(number, prompt)

    def _address(self, column: Token | Session, request: RequestInfo) -> str:
        """Return the endpoint that a request's session is bound to, empty for none."""
        if isinstance(column, Session):
            return self._bound[column].get(_session(column, request), ("", 0.0))[0]
        try:
            return b64decode(request.headers.get(column.headers[0], "")).decode()
        except ValueError:
            return ""

    def note(self, address: str, request: RequestInfo, seen: Snapshot, now_s: float) -> None:
        """Note where a request went, by the snapshot of its decision."""
        for column, bound in self._bound.items():
            while bound and now_s - next(iter(bound.values()))[1] > column.ttl_s:
                del bound[next(iter(bound))]
            session = _session(column, request)
            before = bound.get(session, (address,))[0]
            if session and (before == address or not seen.extra[column.name].any()):
                bound.pop(session, None)
                bound[session] = (address, now_s)
        for media, known in self._media.items():
            if request.media:
                held = known[address] = known.pop(address, {})
                for name in request.media:
                    held.pop(name, None)
                    held[name] = None
                while len(held) > media.most:
                    del held[next(iter(held))]
                if len(known) > _MOST_ENDPOINTS:
                    del known[next(iter(known))]
        if self._indexes and request.prompt_tokens:
            self._index(address, request)
        if seen.cached_tokens.any():
            return
        for place, order in self._cold.items():
            order.pop(address, None)
            order[address] = None
            if len(order) > place.most:
                del order[next(iter(order))]


def _by_slot(slots: Slots, value: Callable[[int], float]) -> Floats:
    return np.fromiter(map(value, slots.tolist()), np.float64, len(slots))


def _session(column: Session, request: RequestInfo) -> str:
    """Find the id of a request's session."""
    for header, cookie in column.sources:
        told = request.headers.get(header, "")
        if cookie:
            pairs = (pair.strip().partition("=") for pair in told.split(";"))
            told = next((value for key, _, value in pairs if key == cookie), "")
        if told := told.strip():
            return told
    return ""


def lora_score(adapters: Adapters, model: str) -> float:
    """Score an endpoint for an adapter (`epp.llmd.policies.scorers.LoraScorer`)."""
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
