"""What a picker tells its Envoy and peers with a pick that may leave."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import MagicMock

import pytest

from epp.config.federation import AWAY_KEY, FORWARD_HEADER, HOP_HEADER, Federation
from epp.config.relays import Relays
from epp.extproc.types import Destination, HttpRequest
from epp.regions.hop import _read
from epp.request.regions import Regions
from epp.types import RequestInfo
from tests.kit.clock import ManualClock
from tests.kit.records import picker_of

if TYPE_CHECKING:
    from pathlib import Path

    from epp.config.schema import Config
    from epp.schedule.decision import Decision

KEY = b"a key that all regions share"
REGIONS = {"eu": "10.0.0.1:8443", "us": "10.0.0.2:8443", "ap": "10.0.0.3:8443", "sa": "10.0.0.4:8443"}


@pytest.mark.parametrize(
    ("max_hops", "names", "allowed", "may"),
    [
        (1, ("us", "own"), None, ("us",)),
        (1, ("us", "ap"), ("us", "ap", "sa"), ("us", "ap")),
        (2, ("us",), None, ("us", "ap", "sa")),
        (2, ("us", "own"), ("eu", "us", "ap"), ("us", "ap")),
    ],
)
def test_a_pick_says_whether_it_may_stay_and_its_token_who_may_have_it(
    tmp_path: Path,
    max_hops: int,
    names: tuple[str, ...],
    allowed: tuple[str, ...] | None,
    may: Any,
) -> None:
    (tmp_path / "key").write_bytes(KEY)
    federation = Federation(region="eu", key_file="key", max_hops=max_hops)
    relays = Relays(regions=REGIONS, ca_file="/a", cert_file="/c", key_file="/k")
    config = cast("Config", SimpleNamespace(federation=federation, relays=relays))
    regions = Regions(
        config,
        tmp_path,
        "epp.yaml",
        ManualClock(),
        datastore=picker_of(pool=[]).datastore,
        key_id="k",
        metrics=MagicMock(),
    )
    addresses = {region: address for address, region in regions.peers.items()} | {"own": "10.1.0.1:8000"}
    decision = SimpleNamespace(
        id="d-1",
        snapshot=SimpleNamespace(endpoints=[addresses[name] for name in names]),
        chosen=0,
        fallbacks=tuple(range(1, len(names))),
        endpoint=addresses[names[0]],
        request=RequestInfo(regions=None if allowed is None else frozenset(allowed)),
    )
    pick = Destination(decision.endpoint, "d-1")
    regions.set_hop(pick, HttpRequest("POST", "/", {}, b""), cast("Decision", decision), None)
    assert (AWAY_KEY in pick.metadata) == (allowed is not None and "eu" not in allowed)
    assert pick.set_headers[FORWARD_HEADER] == ",".join(name for name in names if name != "own")
    hop = _read(pick.set_headers[HOP_HEADER], KEY)
    assert hop is not None
    assert (hop.targets, hop.bound) == (may, "own" not in names)
