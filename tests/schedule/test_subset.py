"""The subset hint: endpoint picker protocol (proposal 004), request direction."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.errors import NoEndpointError
from epp.schedule.filters import Eligibility, Wants
from epp.schedule.subset import KEY, NAMESPACE, Subset, hosts_of, parse_entries, subset_hint
from epp.signals.endpoint import Endpoint

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


@pytest.mark.parametrize("metadata", [{}, {NAMESPACE: {}}, {"envoy.lb": {KEY: ["10.0.0.1:8000"]}}])
def test_without_the_key_there_is_no_hint(metadata: dict[str, dict[str, object]]) -> None:
    assert subset_hint(metadata) is None


@given(st.lists(st.one_of(st.sampled_from(POOL), st.text(max_size=20))))
def test_no_text_allows_what_it_does_not_list(texts: list[str]) -> None:
    found = parse_entries(tuple(texts)).addresses(hosts_of(POOL))
    listed = {piece.strip() for text in texts for piece in text.split(",")}
    hosts = {piece.lower() for piece in listed}
    assert all(address in listed or address.rpartition(":")[0].strip("[]") in hosts for address in found)


@pytest.fixture
def filters() -> Eligibility:
    eligibility = Eligibility()
    limits = [None, 100, None, None, None]
    eligibility.set_pool(
        [
            (slot, Endpoint(address, context_tokens=limit))
            for slot, (address, limit) in enumerate(zip(POOL, limits, strict=True))
        ]
    )
    return eligibility


def test_only_what_is_listed_is_a_candidate(filters: Eligibility) -> None:
    found = filters.candidates(Wants(subset=parse_entries(("10.0.0.1",))), None)
    assert found.slots.tolist() == [0, 1]
    assert set(found.excluded["subset"]) == set(POOL[2:])


def test_the_other_rules_hold_within_a_subset(filters: Eligibility) -> None:
    found = filters.candidates(Wants(subset=parse_entries(("10.0.0.1",)), context_tokens=200), None)
    assert found.slots.tolist() == [0]


@pytest.mark.parametrize("subset", [Subset(), parse_entries(("10.9.9.9:1",))], ids=["empty", "elsewhere"])
def test_a_hint_that_allows_nobody_is_refused_by_its_name(filters: Eligibility, subset: Subset) -> None:
    with pytest.raises(NoEndpointError) as caught:
        filters.candidates(Wants(subset=subset), None)
    assert caught.value.rule == "subset"


def test_a_pool_that_changes_is_matched_anew(filters: Eligibility) -> None:
    wants = Wants(subset=parse_entries(("10.0.0.9:1",)))
    with pytest.raises(NoEndpointError):
        filters.candidates(wants, None)
    filters.set_pool([(0, Endpoint("10.0.0.9:1"))])
    assert filters.candidates(wants, None).slots.tolist() == [0]
