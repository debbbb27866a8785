"""Tokenizers of served models: what names stand for, sharing, retries, bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from epp.apis.listed_models import parse_models

pytest.importorskip("tokenizers")

from epp.config.schema import Tokens
from epp.feeds.poll import SignalFeed
from epp.metrics.metrics import Metrics
from epp.metrics.table import TABLE
from epp.prefix_cache.index import PrefixIndex
from epp.request.tokenizers import FORGET_S, RETRY_S, ServedTokenizers
from epp.signals.datastore import Datastore
from epp.types import Endpoint
from tests.kit.clock import ManualClock
from tests.kit.tokenizers import DATA
from tests.kit.waiting import until

if TYPE_CHECKING:
    from pathlib import Path


class Bench:
    def __init__(self, configured: dict[str, Any] | None = None, **keys: Any) -> None:
        self.models, self.clock = configured or {}, ManualClock(1000.0)
        self.served = ServedTokenizers(self.models, Tokens(**keys), self.clock.mono_s)

    async def look_for(self, **roots: str) -> None:
        """Look for them until there is a result for each."""
        self.served.look_for(roots)
        states = self.served._served
        await until(
            lambda: all(name in self.models or states[name].reason for name in roots if name in states)
        )


async def test_models_of_one_root_share_a_tokenizer(tmp_path: Path) -> None:
    bench = Bench()
    await bench.look_for(base=str(DATA / "bytes"), lora=str(DATA / "bytes"), other=str(tmp_path))
    assert bench.models["base"] is bench.models["lora"]
    assert bench.served.counted_by == {"base": "tokenizer", "lora": "tokenizer", "other": "estimate"}


async def test_what_was_not_there_is_looked_for_again_and_what_is_gone_is_forgotten(tmp_path: Path) -> None:
    bench, root = Bench(), tmp_path / "later"
    await bench.look_for(m=str(root))
    root.symlink_to(DATA / "bytes")
    bench.clock.advance(RETRY_S / 2)
    await bench.look_for(m=str(root))
    assert not bench.models
    bench.clock.advance(RETRY_S / 2)
    bench.served._served["m"].reason = ""
    await bench.look_for(m=str(root))
    assert set(bench.models) == {"m"}
    bench.clock.advance(FORGET_S + 1)
    bench.served.look_for({})
    assert (bench.models, bench.served.counted_by) == ({}, {})


async def test_the_operator_s_word_is_left_alone() -> None:
    mine = object()
    bench = Bench({"m": mine}, models={"m": {}}, tokenizer="estimate")
    await bench.look_for(m=str(DATA / "bytes"), other=str(DATA / "bytes"))
    assert bench.models == {"m": mine}
    assert bench.served.counted_by == {"m": "tokenizer", "other": "estimate"}


def test_public_names_lead_to_what_their_engine_serves() -> None:
    listing = parse_models(
        b'{"data": [{"id": "prod", "root": "org/base", "parent": null}, {"id": "own"},'
        b' {"id": "sql", "root": "/adapters/sql", "parent": "prod"}]}'
    )
    datastore, told = Datastore(PrefixIndex()), list[object]()
    public = Endpoint(
        "a:1",
        models=frozenset({"chat", "sql", "gone"}),
        served_names={"chat": "prod"},
        adapters=frozenset({"sql"}),
    )
    datastore.apply([public, Endpoint("b:1")], 0.0)
    feed = SignalFeed(datastore, Metrics(TABLE), serve=told.append)
    feed.models_listed("a:1", frozenset(), listing)
    feed.models_listed("b:1", frozenset(), listing)
    assert told == [
        {"chat": "org/base", "sql": "org/base"},
        {"prod": "org/base", "own": "own", "sql": "org/base"},
    ]
