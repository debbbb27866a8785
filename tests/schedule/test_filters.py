from __future__ import annotations

import numpy as np
import pytest

from epp.config.schema import RegionRule
from epp.errors import NoEndpointError
from epp.schedule.filters import Filters, allowed_regions
from epp.types import Endpoint, RequestInfo

POOL = [
    Endpoint("a:1", region="eu", models=frozenset({"llama"}), context_tokens=8000),
    Endpoint("b:1", region="us", models=frozenset({"llama", "qwen"})),
    Endpoint("c:1", region="us", context_tokens=4000),
    Endpoint("d:1", region="ap", draining=True),
]


@pytest.fixture
def filters() -> Filters:
    eligibility = Filters()
    eligibility.set_pool(list(enumerate(POOL)))
    return eligibility


@pytest.mark.parametrize(
    ("wants", "slots", "excluded"),
    [
        (RequestInfo(), [0, 1, 2], {"draining": ("d:1",)}),
        (RequestInfo(model="qwen"), [1, 2], {"draining": ("d:1",), "model": ("a:1",)}),
        (RequestInfo(model="gpt"), [2], {"draining": ("d:1",), "model": ("a:1", "b:1")}),
        (RequestInfo(regions=frozenset({"us"})), [1, 2], {"draining": ("d:1",), "region": ("a:1",)}),
        (RequestInfo(prompt_tokens=5000), [0, 1], {"draining": ("d:1",), "context": ("c:1",)}),
    ],
)
def test_each_rule_removes_and_says_whom(
    filters: Filters, wants: RequestInfo, slots: list[int], excluded: dict[str, tuple[str, ...]]
) -> None:
    found = filters.candidates(wants, None)
    assert found.slots.tolist() == slots
    assert found.excluded == excluded


@pytest.mark.parametrize(
    ("holder", "healthy", "slots", "excluded"),
    [
        (1, None, [1], ("a:1", "c:1")),
        (1, [True, True, False, True], [1], ("a:1",)),
        (1, [True, False, True, True], [0, 2], None),  # ejected
        (3, None, [0, 1, 2], None),  # draining
    ],
)
def test_who_holds_the_response_that_a_request_is_about_serves_alone_if_it_may(
    filters: Filters,
    holder: int,
    healthy: list[bool] | None,
    slots: list[int],
    excluded: tuple[str, ...] | None,
) -> None:
    mask = None if healthy is None else np.array(healthy)
    for paused in (None, {holder: 130.0}):  # elsewhere it fails for good, here it may not
        found = filters.candidates(RequestInfo(), mask, paused, holder=holder)
        assert found.slots.tolist() == slots
        assert found.excluded.get("stored-response") == excluded


@pytest.mark.parametrize(
    ("retry_after", "slots", "excluded"),
    [
        ({1: 130.0}, [0, 2], ("b:1",)),
        ({0: 140.0, 1: 130.0, 2: 150.0}, [1], ("a:1", "c:1")),
        ({3: 130.0}, [0, 1, 2], None),
    ],
)
def test_endpoints_that_asked_to_be_left_alone_serve_only_where_no_other_may(
    filters: Filters, retry_after: dict[int, float], slots: list[int], excluded: tuple[str, ...] | None
) -> None:
    found = filters.candidates(RequestInfo(), None, retry_after)
    assert found.slots.tolist() == slots
    assert found.excluded.get("retry-after") == excluded


@pytest.mark.parametrize(
    ("wants", "healthy", "rule"),
    [
        (RequestInfo(regions=frozenset({"mars"})), None, "region"),
        (RequestInfo(regions=frozenset()), None, "region"),
        (RequestInfo(model="qwen", regions=frozenset({"eu"})), None, "region"),
        (RequestInfo(model="gpt", regions=frozenset({"eu"})), None, "region"),
        (RequestInfo(model="llama", regions=frozenset({"eu"}), prompt_tokens=9000), None, "context"),
        (RequestInfo(), np.zeros(4, dtype=np.bool_), "health"),
    ],
)
def test_nobody_left_names_the_rule(
    filters: Filters,
    wants: RequestInfo,
    healthy: np.ndarray[tuple[int], np.dtype[np.bool_]] | None,
    rule: str,
) -> None:
    with pytest.raises(NoEndpointError) as caught:
        filters.candidates(wants, healthy)
    assert caught.value.rule == rule


def test_region_rules_match_and_intersect() -> None:
    rules = [
        RegionRule(allow=["eu", "us"], model="llama*"),
        RegionRule(allow=["eu"], header="X-Tenant", value="acme"),
        RegionRule(allow=["ap"], path_prefix="/ap/"),
        RegionRule(allow=["ap"], header="Host", value="asia.example"),
    ]
    cases: list[tuple[tuple[str | None, str, dict[str, str]], set[str] | None]] = [
        (("llama-3", "/v1", {}), {"eu", "us"}),
        (("llama-3", "/v1", {"x-tenant": "acme"}), {"eu"}),
        (("qwen", "/ap/v1", {"x-tenant": "acme"}), set()),
        (("qwen", "/v1", {"x-tenant": "other"}), None),
        (("qwen", "/v1", {"x-tenant": "other, acme"}), {"eu"}),
        (("qwen", "/v1", {":authority": "asia.example"}), {"ap"}),
        ((None, "/v1", {}), {"eu", "us"}),
    ]
    for (model, path, headers), expected in cases:
        found = allowed_regions(rules, model=model, path=path, headers=headers)
        assert found == (None if expected is None else frozenset(expected))


NAMED = [
    Endpoint("a:1", models=frozenset({"chat", "sql"}), served_names={"chat": "llama-a", "sql": "lora"}),
    Endpoint("b:1", models=frozenset({"chat"}), served_names={"chat": "llama-b"}, context_tokens=100),
    Endpoint("c:1", models=frozenset({"chat", "sql"}), served_names={"chat": "llama-a"}),
    Endpoint("d:1"),
]


@pytest.mark.parametrize(
    ("wants", "healthy", "served"),
    [
        (RequestInfo(model="chat"), None, ("llama-a", "llama-b", "llama-a", "chat")),
        (RequestInfo(model="chat", prompt_tokens=200), None, ("llama-a", "llama-a", "chat")),
        (RequestInfo(model="chat"), [False, True, True, True], ("llama-b", "llama-a", "chat")),
        (RequestInfo(model="sql"), None, ("lora", "sql", "sql")),
        (RequestInfo(model="sql"), [False, True, True, True], ("sql", "sql")),
        (RequestInfo(model="other"), None, ()),
    ],
)
def test_candidates_say_what_their_engines_call_the_model(
    wants: RequestInfo, healthy: list[bool] | None, served: tuple[str, ...]
) -> None:
    eligibility = Filters()
    eligibility.set_pool(list(enumerate(NAMED)))
    found = eligibility.candidates(wants, None if healthy is None else np.array(healthy))
    assert found.served_models == served


def test_a_model_that_an_engine_refused_goes_to_others_until_it_is_listed() -> None:
    pool = [
        Endpoint("a:1", models=frozenset({"chat", "sql"}), served_names={"sql": "lora"}),
        Endpoint("b:1", models=frozenset({"chat", "sql"})),
        Endpoint("c:1"),
    ]
    filters = Filters()
    filters.set_pool(list(enumerate(pool)))

    def slots(model: str) -> list[int]:
        return [int(slot) for slot in filters.candidates(RequestInfo(model=model), None).slots]

    assert slots("sql") == [0, 1, 2]
    assert [filters.refuse("a:1", "lora") for _ in range(2)] == [True, False]
    assert (slots("sql"), slots("chat")) == ([1, 2], [0, 1, 2])
    filters.listed("a:1", {"chat"})
    assert slots("sql") == [1, 2]
    filters.listed("a:1", {"lora"})
    assert slots("sql") == [0, 1, 2]

    for address in ("b:1", "c:1"):
        filters.refuse(address, "sql")
    filters.refuse("a:1", "lora")
    assert not filters.serves("sql")
    with pytest.raises(NoEndpointError) as caught:
        slots("sql")
    assert caught.value.rule == "model"
    filters.listed("c:1", ())
    assert filters.serves("sql"), "an engine that lists nothing may know it"


def test_refusals_that_are_remembered_are_bounded() -> None:
    filters = Filters()
    filters.set_pool([(0, Endpoint("a:1"))])
    for number in range(2000):
        filters.refuse("a:1", f"name-{number}")
    assert filters.serves("name-0")
    assert not filters.serves("name-1999")


def test_a_model_in_doubt_is_refused_where_the_next_list_lacks_it() -> None:
    filters = Filters()
    filters.set_pool([(0, Endpoint("a:1"))])
    assert [filters.refuse("a:1", name, certain=False) for name in ("sql", "sql", "chat")] == [
        True,
        False,
        True,
    ]
    assert filters.serves("sql")
    assert filters.listed("b:1", {"base"}) == 0
    assert filters.listed("a:1", {"chat"}) == 1
    assert (filters.serves("sql"), filters.serves("chat")) == (False, True)
    assert not filters.refuse("a:1", "sql", certain=False), "it is refused already"
