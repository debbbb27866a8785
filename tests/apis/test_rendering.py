"""Bodies that engines render alike have equal bytes; those that they render otherwise have not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from epp.apis.content import prompt_content
from epp.apis.registry import find_parser
from epp.apis.rendering import (
    PAST_REASONING,
    REASONING,
    UNCHOSEN_TOOLS,
    Rendering,
    by_name,
)

Body = dict[str, Any]
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1,"b":"é"}'}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("f", "g")]


def canonical(path: str, body: Body, model: str = "m", rendering: Rendering | None = None) -> bytes:
    parser = find_parser("POST", path, {})
    assert parser is not None
    data = json.dumps({"model": model, "max_tokens": 9} | body).encode()
    return parser.parse(data, {}, by_name if rendering is None else lambda _: rendering).canonical


def turn(call: Body | None = None, result: Body | None = None, **told: Any) -> Body:
    calling = {"role": "assistant", "content": None, "tool_calls": [call or CALL]} | told
    answer = {"role": "tool", "tool_call_id": "c1", "content": "it"} | (result or {})
    return {"messages": [{"role": "user", "content": "do"}, calling, answer]}


def arguments(given: Any) -> Body:
    return CALL | {"function": {"name": "f", "arguments": given}}


def said(*parts: Any) -> Body:
    return {"messages": [{"role": "user", "content": list(parts)}]}


def text(words: str) -> Body:
    return {"type": "text", "text": words}


def image(url: str) -> Body:
    return said({"type": "image_url", "image_url": {"url": url}}, text("what is it?"))


S3 = "https://b.s3.amazonaws.com/a/cat.png?X-Amz-Date=20261128&X-Amz-Expires=60&X-Amz-Signature="
AZURE = "https://acct.blob.core.windows.net/c/cat.png?sv=2024-11-04&se=2026-11-28T{}Z&sr=b&sig=abc%3D"
GCS = "https://storage.googleapis.com/b/cat.png?X-Goog-Algorithm=GOOG4-RSA-SHA256&X-Goog-Signature="

ALIKE: list[tuple[str, Body, Body]] = [
    (CHAT, turn(), turn(arguments('{"a": 1, "b": "\\u00e9"}'))),
    (CHAT, turn(), turn(arguments({"a": 1, "b": "é"}))),
    (CHAT, turn(arguments("{}")), turn(arguments(""))),
    (CHAT, turn(arguments({})), turn(arguments(None))),
    (CHAT, turn(), turn(content="")),
    (CHAT, turn(), turn(content=[])),
    (CHAT, turn(), turn(content=[text("")])),
    (CHAT, turn(), turn(CALL | {"id": "made-anew"}, {"tool_call_id": "made-anew"})),
    (CHAT, turn(), turn(CALL | {"index": 0})),
    (CHAT, turn(), turn({name: value for name, value in CALL.items() if name != "type"})),
    (CHAT, said(text("a"), text("b")), said(text("a\nb"))),
    (CHAT, said("a", text("b")), {"messages": [{"role": "user", "content": "a\nb"}]}),
    (CHAT, image(S3 + "11"), image(S3 + "22")),
    (CHAT, image(S3 + "11"), image("https://b.s3.amazonaws.com/a/cat.png")),
    (CHAT, image(GCS + "1"), image(GCS + "2")),
    (CHAT, image(AZURE.format("10")), image(AZURE.format("11"))),
    (
        MESSAGES,
        {"messages": [{"role": "user", "content": [text("a"), text("b")]}]},
        {"messages": [{"role": "user", "content": "a\nb"}]},
    ),
    (
        MESSAGES,
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]}]},
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "2", "name": "f"}]}]},
    ),
    (
        RESPONSES,
        {"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"a":1}'}]},
        {"input": [{"type": "function_call", "call_id": "2", "name": "f", "arguments": '{"a": 1}'}]},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("path", "one", "other"), ALIKE)
def test_what_engines_render_alike_has_equal_bytes(path: str, one: Body, other: Body) -> None:
    assert canonical(path, one) == canonical(path, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (turn(), turn(arguments('{"b":"é","a":1}'))),  # templates write keys as they came
        (turn(), turn(arguments('{"a":"1","b":"é"}'))),
        (turn(arguments("no JSON")), turn(arguments("{}"))),
        (said(text("a"), text("b")), said(text("ab"))),
        (image("https://h/cat.png?v=1"), image("https://h/cat.png?v=2")),
        (image(S3 + "1"), image(S3.replace("cat", "dog") + "1")),
        ({**turn(), "tools": TOOLS}, turn()),
    ],
)
def test_what_engines_render_otherwise_has_other_bytes(one: Body, other: Body) -> None:
    assert canonical(CHAT, one) != canonical(CHAT, other)


@pytest.mark.parametrize("model", ["mistralai/Mistral-Small-3.2", "Devstral-2", "moonshotai/Kimi-K2"])
def test_models_whose_templates_print_ids_tell_them_apart(model: str) -> None:
    one, other = turn(), turn(CALL | {"id": "c2"}, {"tool_call_id": "c2"})
    assert canonical(CHAT, one, model) != canonical(CHAT, other, model)
    assert canonical(CHAT, turn(), model) == canonical(CHAT, turn(CALL | {"index": 0}), model)
    (_, calling, result) = prompt_content(canonical(CHAT, one, model)).messages
    assert (calling["tool_calls"][0]["id"], result["tool_call_id"]) == ("c1", "c1")


def test_templates_get_arguments_as_objects() -> None:
    _, calling, _ = prompt_content(canonical(CHAT, turn())).messages
    assert calling["tool_calls"] == [
        {"type": "function", "function": {"name": "f", "arguments": {"a": 1, "b": "é"}}}
    ]


def test_the_separator_of_text_parts_is_the_templates() -> None:
    pieces = canonical(CHAT, said(text("a"), text("b")), rendering=Rendering(separator=""))
    assert pieces == canonical(CHAT, said(text("ab")))


THOUGHT = {"role": "assistant", "reasoning_content": "hm " * 99, "content": "so"}
ITEM = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm " * 99}]}
BLOCK = {"type": "thinking", "thinking": "hm " * 99, "signature": "s"}
USER = {"role": "user", "content": "go on"}
THINKING: list[tuple[str, Body, Body]] = [
    (CHAT, {"messages": [USER, THOUGHT, USER]}, {"messages": [USER, THOUGHT | {"reasoning_content": None}, USER]}),
    (
        MESSAGES,
        {"messages": [USER, {"role": "assistant", "content": [BLOCK, text("so")]}, USER]},
        {"messages": [USER, {"role": "assistant", "content": [text("so")]}, USER]},
    ),
    (
        RESPONSES,
        {"input": [USER, ITEM, {"role": "assistant", "content": "so"}, USER]},
        {"input": [USER, {"role": "assistant", "content": "so"}, USER]},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("path", "thought", "plain"), THINKING)
def test_past_reasoning_is_no_part_of_a_prompt_that_lacks_it(path: str, thought: Body, plain: Body) -> None:
    dropping, keeping = Rendering(dropped=frozenset({PAST_REASONING})), Rendering()
    assert len(canonical(path, thought, rendering=keeping)) > len(canonical(path, plain)) + 290
    dropped = canonical(path, thought, rendering=dropping)
    assert b"hm" not in dropped
    since = json.loads(json.dumps(thought))
    next(value for value in since.values() if isinstance(value, list)).pop()
    assert b"hm" in canonical(path, since, rendering=dropping), "what was thought since a user spoke is kept"
    assert b"hm" not in canonical(path, since, rendering=Rendering(dropped=frozenset({REASONING})))


@pytest.mark.parametrize(
    ("path", "body", "choices"),
    [
        (CHAT, {**turn(), "tools": TOOLS}, ("none", {"type": "function", "function": {"name": "g"}})),
        (
            MESSAGES,
            {"messages": [USER], "tools": [{"name": name, "input_schema": {}} for name in ("f", "g")]},
            ({"type": "none"}, {"type": "tool", "name": "g"}),
        ),
        (
            RESPONSES,
            {"input": "x", "tools": [{"type": "function", "name": name, "parameters": {}} for name in ("f", "g")]},
            ("none", {"type": "function", "name": "g"}),
        ),
    ],
)  # fmt: skip
def test_tools_that_the_choice_rules_out_are_dropped_where_engines_drop_them(
    path: str, body: Body, choices: tuple[Any, Any]
) -> None:
    none, named = choices
    all_tools = canonical(path, body)
    assert canonical(path, body | {"tool_choice": none}) == all_tools, "as vLLM renders them"
    for auto in ("auto", "required", {"type": "auto"}, None):
        assert canonical(path, body | {"tool_choice": auto}, rendering=DROPPING) == all_tools
    without = {name: value for name, value in body.items() if name != "tools"}
    assert canonical(path, body | {"tool_choice": none}, rendering=DROPPING) == canonical(path, without)
    only = canonical(path, body | {"tool_choice": named}, rendering=DROPPING)
    assert only == canonical(path, body | {"tools": body["tools"][1:]})


DROPPING = Rendering(dropped=frozenset({UNCHOSEN_TOOLS}))
