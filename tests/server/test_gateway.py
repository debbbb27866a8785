"""The endpoint picker protocol from question to answer, without a socket; sections of proposal 004 by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from epp.extproc.types import HttpRequest, LocalReply
from epp.types import Endpoint
from tests.kit.apps import app_of
from tests.kit.clock import ManualClock
from tests.kit.requests import Decided, decide

if TYPE_CHECKING:
    from pathlib import Path

    from epp.server.app import App

POOL = ("10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8000", "[fd00::1]:8000")
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
HINT = "envoy.lb.subset_hint"
KEY = "x-gateway-destination-endpoint-subset"


def app(folder: Path, endpoints: tuple[str, ...] = POOL, **protocol: Any) -> App:
    clock = ManualClock(1000.0)
    made = app_of(folder, clock, protocol=protocol, policy={"fallbacks": 1}, pool={"warmup_s": 0})
    made.scheduler.set_pool([Endpoint(address) for address in endpoints], 0.0)
    return made


def chat(*, hint: Any = ..., body: bytes | None = None, **headers: str) -> HttpRequest:
    metadata = {} if hint is ... else {HINT: {KEY: hint}}
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    data = json.dumps(CHAT).encode() if body is None else body
    return HttpRequest("POST", "/v1/chat/completions", names, data, metadata)


def bodyless(*, hint: Any = ...) -> HttpRequest:
    metadata = {} if hint is ... else {HINT: {KEY: hint}}
    return HttpRequest("GET", "/v1/models", {}, None, metadata)


def picked(made: App, request: HttpRequest) -> list[str]:
    decided = decide(made.director, request)
    assert isinstance(decided, Decided), decided
    return decided.pick.destination.split(",")


def refused(made: App, request: HttpRequest) -> LocalReply:
    refusal = decide(made.director, request)
    assert isinstance(refusal, LocalReply)
    return refusal


@pytest.mark.parametrize("request_of", [chat, bodyless], ids=["chat", "no-body"])
@pytest.mark.parametrize(
    ("hint", "allowed"),
    [
        (["10.0.0.2:8000"], {"10.0.0.2:8000"}),
        ("10.0.0.1", {"10.0.0.1:8000", "10.0.0.1:8001"}),
        (["[fd00:0::1]:8000"], {"[fd00::1]:8000"}),
    ],
)
def test_pick_and_fallbacks_stay_within_the_subset(
    tmp_path: Path, request_of: Any, hint: Any, allowed: set[str]
) -> None:
    """Subset hint; requests without a body obey it, too (llm-d draws at random for these)."""
    made = app(tmp_path)
    for _ in range(20):
        assert set(picked(made, request_of(hint=hint))) == allowed


def test_the_hint_can_be_switched_off(tmp_path: Path) -> None:
    """llm-d's --disable-endpoint-subset-filter."""
    assert picked(app(tmp_path, subset_hint=False), chat(hint=[]))


@pytest.mark.parametrize(("body", "word"), [(b"{", b"JSON"), (b'{"model":"m"}', b"messages")])
def test_the_clients_own_mistakes_in_llm_ds_words(tmp_path: Path, body: bytes, word: bytes) -> None:
    """Errors: 400, plain text, and no reason of a drop."""
    refusal = refused(app(tmp_path, errors="llm-d"), chat(body=body))
    assert refusal.status == 400
    assert refusal.body.startswith(b"inference error: BadRequest - ")
    assert word in refusal.body
    assert not refusal.headers


@pytest.mark.parametrize(
    ("errors", "start"), [("api", b'{"error"'), ("llm-d", b"inference error: BadRequest")]
)
def test_a_body_over_the_limit_in_the_same_words(tmp_path: Path, errors: str, start: bytes) -> None:
    refusal = app(tmp_path, errors=errors).director.refuse_unread(bodyless(), 413)
    assert refusal.status == 413
    assert refusal.body.startswith(start)


def test_scores_of_every_priced_endpoint_on_request(tmp_path: Path) -> None:
    """llm-d's --emit-endpoint-scores; the picked endpoint has the highest."""
    made = app(tmp_path, emit_scores=True)
    decided = decide(made.director, chat())
    assert isinstance(decided, Decided)
    scores = decided.pick.scores
    assert set(scores) == set(POOL)
    assert scores[decided.decision.endpoint] == max(scores.values())
    plain = decide(app(tmp_path).director, chat())
    assert isinstance(plain, Decided)
    assert not plain.pick.scores


@pytest.mark.parametrize("request_of", [chat, bodyless], ids=["chat", "no-body"])
def test_a_request_without_an_id_gets_one(tmp_path: Path, request_of: Any) -> None:
    made = app(tmp_path)
    without, named = decide(made.director, request_of()), decide(made.director, chat(x_request_id="client's"))
    assert isinstance(without, Decided)
    assert isinstance(named, Decided)
    assert without.pick.set_headers == {"x-request-id": without.decision.id}
    assert not named.pick.set_headers


STEERED = "10.0.0.2:8000, 10.9.9.9:1, 10.0.0.1"


def test_steering_stays_within_the_hint(tmp_path: Path) -> None:
    made = app(tmp_path, conformance=True)
    assert picked(made, chat(hint="10.0.0.1:8001", test_epp_endpoint_selection=STEERED)) == ["10.0.0.1:8001"]


def test_without_the_switch_clients_do_not_steer(tmp_path: Path) -> None:
    """Conformance: in production the header is a client's word and means nothing."""
    made = app(tmp_path)
    found = {picked(made, chat(test_epp_endpoint_selection="10.0.0.2:8000"))[0] for _ in range(40)}
    assert len(found) > 1


OTHER = {"[fd00::2]:8000": "10.0.0.2:8000", "10.0.9.1:8000": "[fd00::1]:8000"}


@pytest.mark.parametrize("request_of", [chat, bodyless], ids=["chat", "no-body"])
@pytest.mark.parametrize(
    ("hint", "told"),
    [
        (["[fd00::2]:8000"], {"[fd00::2]:8000"}),
        ("fd00:0::2", {"[fd00::2]:8000"}),
        (["10.0.9.1:8000", "10.0.0.2:8000"], {"10.0.9.1:8000", "10.0.0.2:8000"}),
        (["10.0.0.2:8000", "[fd00::2]:8000"], {"10.0.0.2:8000"}),
        (["10.0.0.2", "[fd00::2]:9999"], {"10.0.0.2:8000"}),
    ],
)
def test_a_dual_stack_pod_is_matched_and_told_by_the_address_that_the_gateway_lists(
    tmp_path: Path, request_of: Any, hint: Any, told: set[str]
) -> None:
    """Subset hint: only what it lists may be answered, and a pod has two addresses."""
    made = app(tmp_path, emit_scores=True)
    made.director.resolver.set_aliases(OTHER)
    decided = decide(made.director, request_of(hint=hint))
    assert isinstance(decided, Decided)
    assert set(decided.pick.destination.split(",")) == told
    assert set(decided.pick.scores) == told
    assert decided.decision.endpoint in POOL, "one endpoint, one place in the ledger"
    assert (
        made.director.resolver.endpoint_of(decided.pick.destination.split(",")[0])
        == decided.decision.endpoint
    )


async def test_names_of_the_pool_are_matched_by_what_they_resolve_to(tmp_path: Path) -> None:
    """Subset hint: gateways list addresses; our pool may hold names."""
    made = app(tmp_path, ("localhost:8000", "10.0.0.2:8000"))
    made.director.resolver.set_pool(["localhost:8000", "10.0.0.2:8000"])
    await made.director.resolver.resolve("localhost:8000")
    known = made.director.resolver.known_as("localhost:8000")
    assert picked(made, chat(hint=known)) == [known]
    assert picked(made, chat(hint=known.rpartition(":")[0])) == [known]
