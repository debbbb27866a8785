"""What a region believes of a forwarded request: a token, once, under the right certificate."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.regions import hop as hops
from epp.regions.hop import LIFETIME_MS, Hop, HopRefusedError, Hops, sign

if TYPE_CHECKING:
    from collections.abc import Callable

KEY, NOW_MS = b"k" * 32, 1_700_000_000_000
REGIONS = ("eu", "us", "ap")
EU = "eu.region.epp.internal"


def token(key: bytes = KEY, **fields: Any) -> str:
    told: dict[str, Any] = {
        "decision_id": "d-1",
        "request_id": "r-1",
        "expires_ms": NOW_MS + 5_000,
        "passed": ("eu",),
        "targets": ("us", "ap"),
    }
    return sign(Hop(**(told | fields)), key)


def taken(region: Hops, text: str, peer: str = EU, request_id: str = "r-1", now_ms: int = NOW_MS) -> Hop:
    hop = region.check(text, peer, request_id, now_ms)
    region.use(hop)
    return hop


def refused(us: Hops, text: str, *, peer: str = EU, request_id: str = "r-1", now_ms: int = NOW_MS) -> str:
    with pytest.raises(HopRefusedError) as error:
        us.check(text, peer, request_id, now_ms)
    return error.value.reason


@pytest.mark.parametrize(
    ("reason", "make", "told"),
    [
        ("missing", lambda: "", {}),
        ("forged", lambda: "AAAA", {}),
        ("forged", lambda: "ü" * 80, {}),
        ("forged", lambda: token(b"another key of 32 bytes, or more"), {}),
        ("forged", lambda: token(passed=()), {}),
        ("peer", token, {"peer": "ap.region.epp.internal"}),
        ("peer", token, {"peer": "eu.region.epp.internal.example"}),
        ("peer", token, {"peer": ""}),
        ("request", token, {"request_id": "r-2"}),
        ("target", lambda: token(targets=("ap",)), {}),
        ("target", lambda: token(passed=("us", "eu")), {}),
        ("expired", token, {"now_ms": NOW_MS + 5_000}),
        ("expired", lambda: token(expires_ms=NOW_MS + 3 * LIFETIME_MS), {}),
        ("hops", lambda: token(passed=("ap", "eu"), targets=("us",)), {}),
    ],
)
def test_what_is_not_believed(reason: str, make: Callable[[], str], told: dict[str, Any]) -> None:
    us = Hops("us", KEY, 1)
    assert refused(us, make(), **told) == reason
    assert taken(us, token()).origin == "eu"  # and nothing of it is remembered


def test_a_token_is_believed_once() -> None:
    us = Hops("us", KEY, 1)
    us.check(token(), EU, "r-1", NOW_MS)  # and was not taken, for want of room
    taken(us, token())
    assert refused(us, token()) == "replayed"
    # The same decision by another way is another token; two regions each take what both may.
    taken(Hops("ap", KEY, 1), token())
    longer = Hops("us", KEY, 2)
    taken(longer, token())
    taken(longer, token(passed=("ap", "eu")))


def test_a_token_used_at_one_picker_is_refused_at_the_others() -> None:
    one, other, joined = (Hops("us", KEY, 1) for _ in range(3))
    one.on_use = lambda use, expires_ms: other.hold([(use, expires_ms)], NOW_MS)
    taken(one, token())
    assert refused(other, token()) == "replayed"
    taken(other, token(decision_id="d-2"))
    joined.hold(other.used(8), NOW_MS)
    assert refused(joined, token()) == refused(joined, token(decision_id="d-2")) == "replayed"
    joined.hold([(bytes(16), NOW_MS + 3 * LIFETIME_MS), (bytes(16), NOW_MS)], NOW_MS)
    assert len(joined.used(8)) == 2, "no token lives so long, or is over"


def test_what_is_remembered_is_bounded_and_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hops, "REMEMBERED", 3)
    us = Hops("us", KEY, 1)
    for number in range(3):
        taken(us, token(decision_id=f"d-{number}"))
    assert refused(us, token(decision_id="d-3")) == "replayed"
    later = NOW_MS + 5_000
    taken(us, token(decision_id="d-3", expires_ms=later + 1), now_ms=later)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_no_byte_of_a_token_can_be_changed(place: int, change: int) -> None:
    good = token()
    raw = bytearray(urlsafe_b64decode(good + "=" * (-len(good) % 4)))
    raw[place % len(raw)] ^= change
    assert refused(Hops("us", KEY, 1), urlsafe_b64encode(raw).decode()) == "forged"


@given(st.integers(1, 4), st.permutations(["a", "b", "c", "d", "e"]))
def test_no_request_comes_twice_to_a_region_nor_goes_further_than_allowed(most: int, way: list[str]) -> None:
    regions = {name: Hops(name, KEY, most) for name in way}
    before, visited = None, [way[0]]
    for target in way[1:]:
        here = regions[visited[-1]]
        allowed = None if before is None else here.reachable(before, way)
        if allowed is not None and target not in allowed:
            assert allowed == {visited[-1]}
            break
        may = way if allowed is None else allowed
        text = here.forward(before, f"d-{visited[-1]}", "r" * 300, tuple(set(may) - {visited[-1]}), NOW_MS)
        before = taken(regions[target], text, f"{visited[-1]}.region.epp.internal", "r" * 300)
        visited.append(target)
        assert before.decision_id == f"d-{way[0]}"
        for back in visited:
            assert refused(
                regions[back], text, peer=f"{visited[-2]}.region.epp.internal", request_id="r" * 300
            ) in (
                "target",
                "replayed",
            )
    assert len(visited) - 1 == min(most, len(way) - 1)


def test_a_region_forwards_only_to_whom_all_before_it_allow() -> None:
    """Its own rules may be older than theirs."""
    us = Hops("us", KEY, 3)
    assert us.reachable(taken(us, token(targets=("us",))), REGIONS) == {"us"}
    assert us.reachable(taken(us, token(decision_id="d-2", targets=("us", "ap"))), REGIONS) == {"us", "ap"}
