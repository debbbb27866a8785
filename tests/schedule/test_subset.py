"""The subset hint: endpoint picker protocol (proposal 004), request direction."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.schedule.filters import Filters
from epp.schedule.subset import KEY, NAMESPACE, hosts_of, parse_entries, subset_hint
from epp.types import Endpoint, RequestInfo

POOL = ("10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8000", "[fd00::1]:8000", "replica.example:8000")


def allowed(value: Any) -> list[str] | None:
    hint = subset_hint({NAMESPACE: {KEY: value}})
    return None if hint is None else list(hint.addresses(hosts_of(POOL)))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (["10.0.0.1:8000", "10.0.0.2:8000"], ["10.0.0.1:8000", "10.0.0.2:8000"]),
        ("10.0.0.2:8000,10.0.0.1:8001", ["10.0.0.2:8000", "10.0.0.1:8001"]),
        (["10.0.0.2:8000, 10.0.0.1:8001"], ["10.0.0.2:8000", "10.0.0.1:8001"]),
        (" 10.0.0.1 ", ["10.0.0.1:8000", "10.0.0.1:8001"]),
        (["10.0.0.1", "10.0.0.1:8001"], ["10.0.0.1:8000", "10.0.0.1:8001"]),
        (["10.0.0.2:9999"], []),
        ("[fd00::1]:8000", ["[fd00::1]:8000"]),
        ("[fd00:0:0::1]:8000", ["[fd00::1]:8000"]),
        ("fd00::1", ["[fd00::1]:8000"]),
        ("[fd00::1]", ["[fd00::1]:8000"]),
        ("::ffff:10.0.0.2", ["10.0.0.2:8000"]),
        ("[::ffff:10.0.0.2]:8000", ["10.0.0.2:8000"]),
        ("Replica.Example:8000", ["replica.example:8000"]),
        ("replica.example", ["replica.example:8000"]),
        ([], []),
        ("", []),
        (" , ,", []),
        (None, []),
        (7.0, []),
        ({"a": "b"}, []),
        ([7.0, None, "10.0.0.2:8000"], ["10.0.0.2:8000"]),
        (["10.0.0.1:8000:9", "[zz]:1", "10.0.0.300", ":80"], []),
    ],
)
def test_a_hint_in_all_its_forms(value: Any, expected: list[str]) -> None:
    assert allowed(value) == expected


def test_a_hint_of_an_address_allows_all_ranks_behind_it() -> None:
    hosts = hosts_of(("10.0.0.1:8000@0", "10.0.0.1:8000@1", "10.0.0.2:8000"))
    assert list(parse_entries(("10.0.0.1:8000",)).addresses(hosts)) == ["10.0.0.1:8000@0", "10.0.0.1:8000@1"]


@given(st.lists(st.one_of(st.sampled_from(POOL), st.text(max_size=20))))
def test_no_text_allows_what_it_does_not_list(texts: list[str]) -> None:
    found = parse_entries(tuple(texts)).addresses(hosts_of(POOL))
    listed = {piece.strip() for text in texts for piece in text.split(",")}
    hosts = {piece.lower() for piece in listed}
    assert all(address in listed or address.rpartition(":")[0].strip("[]") in hosts for address in found)


def test_only_what_is_listed_is_a_candidate() -> None:
    filters = Filters()
    filters.set_pool(list(enumerate(map(Endpoint, POOL))))
    found = filters.candidates(RequestInfo(subset=filters.addresses(parse_entries(("10.0.0.1",)))), None)
    assert found.slots.tolist() == [0, 1]
    assert set(found.excluded["subset"]) == set(POOL[2:])
