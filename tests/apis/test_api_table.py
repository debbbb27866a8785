"""One test for each cell of the table in docs/apis.md: what `tests.kit.apis` says that an API can do, it does."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from docs.generate_apis import PAGE, page
from epp.apis.canonical import exact_tokens
from epp.apis.registry import PARSERS, error_words, find_parser
from epp.apis.usage import Usage, UsageReader
from epp.errors import ClientError
from epp.prefix_cache.blocks import BlockHasher
from epp.tokens.estimate import EstimateCounter
from tests.kit.apis import APIS, Api, has

if TYPE_CHECKING:
    from epp.apis.types import ParsedRequest

JSON = {"content-type": "application/json"}
COUNTER = EstimateCounter()


def cells(feature: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "api", [pytest.param(api, id=api.name) for api in APIS if has(api, feature)]
    )


def parse(api: Api, body: dict[str, Any]) -> ParsedRequest:
    parser = find_parser("POST", api.paths[0], JSON)
    assert parser is not None
    assert parser.name == api.name
    return parser.parse(json.dumps(body).encode(), JSON)


def test_every_route_is_in_the_table_and_every_feature_is_tested() -> None:
    assert sorted(parser.name for parser in PARSERS) == sorted(api.name for api in APIS)
    assert {path for parser in PARSERS for path in parser.paths} == {
        path for api in APIS for path in api.paths
    }


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write it again with `make docs`"


@cells("parse")
def test_parse(api: Api) -> None:
    for path in api.paths:
        assert find_parser("POST", path, JSON) is find_parser("POST", api.paths[0], JSON) is not None
    parsed = parse(api, api.body)
    assert (parsed.api, parsed.max_output_tokens, parsed.session) == (api.name, api.limit, "")
    assert parsed.model == api.body.get("model", "")
    assert bool(parsed.canonical) == (api.name != "anthropic-count-tokens")
    assert parse(api, api.body | {"stream": None, "temperature": 0.5, "unknown": {"deep": [1]}}) == parsed


@cells("refuse")
def test_refuse(api: Api) -> None:
    parser = find_parser("POST", api.paths[0], JSON)
    assert parser is not None
    # a model may be left out where engines know it anyway
    for body in api.bad:
        with pytest.raises(ClientError) as caught:
            parser.parse(body, JSON)
        assert caught.value.status == 400
        assert caught.value.message
        json.loads(parser.error_body(400, caught.value.message, caught.value.param))


@cells("error words")
def test_error_words(api: Api) -> None:
    for path in api.paths:
        words = error_words(path)
        assert words is not None
        assert json.loads(words(400, "no", "f")) == api.error
        for status in (401, 404, 413, 429, 500, 503, 504):
            told = json.loads(words(status, 'a "quoted" 안녕', None))
            assert told["error"]["message"] == 'a "quoted" 안녕'


@cells("prefix-stable")
def test_prefix_stable(api: Api) -> None:
    hasher = BlockHasher(b"a secret for tests only", block_bytes=8)
    for before, after in pairwise(api.turns or ()):
        one, two = parse(api, before), parse(api, after)
        assert two.canonical.startswith(one.canonical)
        assert len(two.canonical) > len(one.canonical)
        blocks = hasher.measure(one, COUNTER).blocks[: len(one.canonical) // 8]
        assert hasher.measure(two, COUNTER).blocks[: len(blocks)] == blocks


@cells("token ids")
def test_token_ids(api: Api) -> None:
    assert api.ids is not None
    body, count = api.ids
    parsed = parse(api, body)
    assert exact_tokens(parsed.canonical) == count == COUNTER.count(parsed)


@cells("media")
def test_media(api: Api) -> None:
    assert api.media is not None
    one, two, least = api.media
    first, second = parse(api, one), parse(api, two)
    assert first.canonical != second.canonical
    assert first == parse(api, one)
    assert least <= COUNTER.count(first) <= least + 40
    assert COUNTER.count(first) == COUNTER.count(second)


@pytest.mark.parametrize("api", [pytest.param(api, id=api.name) for api in APIS])
def test_every_api_has_sessions_and_salts(api: Api) -> None:
    hasher = BlockHasher(b"a secret for tests only")
    plain, other = parse(api, api.body), parse(api, api.body | {"cache_salt": "salt", "session_id": "s"})
    assert (plain.cache_salt, other.cache_salt, plain.session, other.session) == ("", "salt", "", "s")
    assert hasher.measure(plain, COUNTER).namespace != hasher.measure(other, COUNTER).namespace


@cells("usage, streamed")
def test_usage_streamed(api: Api) -> None:
    assert parse(api, api.body | {"stream": True}).stream
    assert usage_in(api.stream)


def usage_in(told: tuple[bytes, Usage] | None) -> bool:
    assert told is not None
    reader = UsageReader()
    reader.feed(told[0])
    return reader.usage == told[1]
