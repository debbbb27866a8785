"""Any bytes give a request, a pass-through or a 4xx in that API's words: ``python -m tests.fuzz.bodies``.

Starts from the requests that SDKs really sent and from the examples of every API, and breaks them: bytes
flipped, cut, repeated; values of other types, odd numbers, surrogates, duplicate keys, deep nesting, long
texts; other methods, paths, content types. Case number n of seed s is always the same: a failure names both.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from epp.apis.canonical import text_bytes
from epp.apis.media import MAX_REQUEST_TOKENS
from epp.apis.pooling import MAX_REPEATED_CHARS
from epp.apis.registry import affinity_key, error_words, find_parser
from epp.errors import ClientError
from epp.prefix_cache.blocks import BlockHasher
from epp.tokens.estimate import EstimateCounter
from tests.kit.apis import APIS, Api

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.apis.types import Parser

GOLDEN = Path(__file__).parent.parent / "apis" / "golden"
#: Canonical bytes are at most so many times the body's, beside what media and pairs may add: JSON's shortest
#: escape of a character that has no UTF-8 apart, every piece has a frame's mark.
_MOST_TIMES, _MOST_MORE = 8, MAX_REQUEST_TOKENS * 4 + 4 * MAX_REPEATED_CHARS + 1024
_ODD_NUMBERS = (
    "NaN",
    "Infinity",
    "-0",
    "1e999",
    "1E400",
    "9" * 400,
    "0.1",
    "-1",
    "18446744073709551616",
    "01",
)
_ODD_TEXTS = (r'"\ud800"', r'"\udc00\ud800"', r'"\u0000"', '"\\"', '"\xff"', '""', '"' + "a" * 5000 + '"')
_ODD_VALUES = ("null", "true", "[]", "{}", "[[]]", '[null, 1, "a", {}]', *_ODD_NUMBERS, *_ODD_TEXTS)
_HASHER, _COUNTER = BlockHasher(b"a secret for the fuzzer"), EstimateCounter()


@dataclass(frozen=True)
class Case:
    """One request."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


def seeds() -> list[Case]:
    """Whole requests to start from."""
    found = []
    for path in sorted(GOLDEN.glob("*.json")):
        requests = json.loads(path.read_text(encoding="utf-8"))["requests"]
        found += [
            Case(one["method"], one["path"], one["headers"], one["body"].encode())
            for one in requests
            if "body" in one
        ]
    for api in APIS:
        found += [
            Case("POST", path, {}, json.dumps(body).encode()) for path in api.paths for body in _bodies(api)
        ]
    return found


def _bodies(api: Api) -> list[Any]:
    bodies = [api.body, *(api.turns or ()), *(body for body, _ in api.sessions or ())]
    bodies += [api.salted] if api.salted else []
    bodies += [api.ids[0]] if api.ids else []
    return [*bodies, *(api.media[:2] if api.media else ())]


def mutate(case: Case, rng: random.Random) -> Case:
    """Break a request in one to four ways."""
    method, path, headers, body = case.method, case.path, dict(case.headers), case.body
    for _ in range(rng.choice([1, 1, 1, 1, 2, 4])):
        what = rng.random()
        if what < 0.75:
            body = _break_values(body, rng)
        elif what < 0.88:
            body = _break_bytes(body, rng)
        elif what < 0.92:
            path = rng.choice(
                [path + "/", path + "?a=b", "/tenant" + path, path.upper(), "", "\ud800", path[:-1]]
            )
        elif what < 0.96:
            headers["content-type"] = rng.choice(
                ["", "text/plain", "application/json; x", "a+json", "\xff", ";"]
            )
        else:
            headers[rng.choice(["upgrade", "content-encoding", "x-session-id"])] = rng.choice(
                ["", "gzip", "é\udcff"]
            )
            method = rng.choice([method, "GET", "PUT", "", "CONNECT"])
    return Case(method, path, headers, body)


def _break_bytes(body: bytes, rng: random.Random) -> bytes:
    if not body:
        return rng.randbytes(rng.randint(0, 40))
    start = rng.randrange(len(body))
    end = min(len(body), start + rng.randint(1, 30))
    how = rng.randrange(5)
    if how == 0:
        return body[:start]
    if how == 1:
        return body[:start] + body[end:]
    if how == 2:
        return body[:start] + rng.randbytes(end - start) + body[end:]
    if how == 3:
        return body[:start] + body[start:end] * rng.choice([2, 50]) + body[end:]
    return body + body[start:end]


def _break_values(body: bytes, rng: random.Random) -> bytes:
    """Replace, nest, rename or repeat a value somewhere in the JSON; raw spellings are put in by name."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return _break_bytes(body, rng)
    holes: list[tuple[Any, Any]] = []
    _find(value, holes)
    if not holes:  # a bare number or text
        return rng.choice(_ODD_VALUES).encode("utf-8", "surrogatepass")
    holder, key = rng.choice(holes)
    how, raw = rng.randrange(6), ""
    if how == 0:
        raw = rng.choice(_ODD_VALUES)
    elif how == 1:
        depth = rng.choice([3, 100, 1100, 20_000])
        opened, closed = rng.choice([("[", "]"), ('{"a":', "}"), ('{"content":[', "]}")])
        raw = opened * depth + "1" + closed * depth
    elif how == 2:
        holder[key] = [holder[key]] * rng.choice([0, 2, 300])
    elif how == 3:
        holder[key] = rng.choice(
            [0, -1, 1.5, True, None, "x", 2**63, {"type": "text"}, {"url": "data:,x"}, [[1, "a"]]]
        )
    elif how == 4 and isinstance(holder, dict):
        holder[rng.choice(["type", "text", "content", "data", "url", "name", "id", "model"])] = holder[key]
    else:
        raw = f'1,"{key}":2' if isinstance(holder, dict) else "1,2"
    if raw:
        holder[key] = "\u2603hole"
    spelled = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    spelled = spelled.replace(json.dumps("\u2603hole"), raw).replace('"\u2603hole"', raw)
    return spelled.encode("utf-8", "surrogatepass")


def _find(value: Any, holes: list[tuple[Any, Any]]) -> None:
    """Places in a value, at most a few hundred."""
    waiting = [value] if isinstance(value, (dict, list)) else []
    while waiting and len(holes) < 400:
        holder = waiting.pop()
        inner = list(holder.items() if isinstance(holder, dict) else enumerate(holder)) if holder else []
        holes += [(holder, key) for key, _ in inner]
        waiting += [one for _, one in inner if isinstance(one, (dict, list))]


def check(case: Case) -> str:
    """What became of a request: its API, ``pass-through`` or ``4xx``.

    Raises:
        AssertionError: it is none of these, or not what it should be.
    """
    parser = find_parser(case.method, case.path, case.headers)
    if parser is None:
        return "pass-through"
    assert error_words(case.path) is not None
    try:
        parsed = parser.parse(case.body, case.headers)
    except ClientError as error:
        _check_refusal(parser, error)
        return "4xx"
    assert parsed.api == parser.name
    assert parsed == parser.parse(case.body, case.headers), "not the same twice"
    assert len(parsed.canonical) <= _MOST_TIMES * len(case.body) + _MOST_MORE, len(parsed.canonical)
    assert parsed.max_output_tokens is None or 0 <= parsed.max_output_tokens <= 1 << 53
    assert 0 <= text_bytes(parsed.canonical) <= len(parsed.canonical)
    assert not parsed.text_only or text_bytes(parsed.canonical) == len(parsed.canonical)
    assert _COUNTER.count(parsed) == _COUNTER.count(replace(parsed, text_only=False))
    prompt = _HASHER.measure(parsed, _COUNTER)
    assert prompt.prompt_tokens >= bool(parsed.canonical)
    assert isinstance(affinity_key(parsed, prompt), str)
    assert isinstance(_HASHER.export_name(parsed.session), str)
    return parser.name


def _check_refusal(parser: Parser, error: ClientError) -> None:
    assert 400 <= error.status < 500, error.status
    assert error.message
    told = json.loads(parser.error_body(error.status, error.message, error.param))
    assert isinstance(told["error"]["message"], str)
    assert (told.get("type") == "error") == parser.name.startswith("anthropic")


def run(seed: int, count: int) -> Counter[str]:
    """So many cases; how many became what.

    Raises:
        RuntimeError: one broke; the message names it.
    """
    starts, became = seeds(), Counter[str]()
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        case = mutate(rng.choice(starts), rng)
        try:
            became[check(case)] += 1
        except Exception as error:
            shown = case.body if len(case.body) < 2000 else case.body[:2000] + b"..."
            raise RuntimeError(f"seed {seed} case {number}: {case.method} {case.path!r} {shown!r}") from error
    return became


def main(argv: list[str] | None = None) -> None:
    """Run, and say what the cases became."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20_000)
    args = parser.parse_args(argv)
    became = run(args.seed, args.count)
    sys.stdout.write(f"bodies: {args.count} cases of seed {args.seed}\n")
    for name, number in sorted(became.items()):
        sys.stdout.write(f"  {name:24}{number:8}\n")


if __name__ == "__main__":
    main()
