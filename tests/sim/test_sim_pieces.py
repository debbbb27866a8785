from __future__ import annotations

import asyncio
import json

from hypothesis import given
from hypothesis import strategies as st

from epp.lab.sim import api, sse
from epp.lab.sim.driver import DelayLine
from epp.lab.sim.metrics import Histogram
from epp.lab.sim.network import INITIAL_WINDOW_BYTES, SendWindow
from tests.kit.replicas import chat_body, metric


def test_upload_round_trips_double_the_window_and_a_warm_connection_has_none() -> None:
    for body_bytes, extra in ((0, 0), (14_600, 0), (14_601, 1), (43_800, 1), (43_801, 2), (108_000, 3)):
        assert SendWindow().upload_round_trips(body_bytes) == extra
    window = SendWindow()
    assert window.upload_round_trips(108_000) == 3
    assert window.upload_round_trips(108_000) == 0
    assert window.window_bytes == 8 * INITIAL_WINDOW_BYTES


def read(body: object) -> api.SimRequest:
    return api.parse(json.dumps(body).encode(), chat=True)


@given(st.lists(st.text(max_size=80), min_size=1, max_size=5), st.integers(1, 60))
def test_a_conversation_goes_on_where_its_cache_ends(turns: list[str], answer_tokens: int) -> None:
    turns = turns if len(turns) % 2 else turns[:-1]
    first = read(chat_body(*turns))
    words = api.answer_words(first, answer_tokens)
    path = api.chain_blocks(first, words, 4)
    second = read(chat_body(*turns, "".join(words), "and then?"))
    longer = api.chain_blocks(second, [], 4)
    assert second.text.startswith(first.text + "".join(words).encode())
    assert longer[: len(path)] == path
    assert len(path) == (len(first.text) // 4 + answer_tokens) // 4


@given(st.text(min_size=1, max_size=200), st.text(min_size=1, max_size=200))
def test_blocks_agree_exactly_as_far_as_the_texts_do(one: str, other: str) -> None:
    requests = [read(chat_body(text)) for text in (one, other)]
    paths = [api.chain_blocks(request, [], 1) for request in requests]
    common = 0
    while common < min(map(len, paths)) and (
        requests[0].text[common * 4 : common * 4 + 4] == requests[1].text[common * 4 : common * 4 + 4]
    ):
        common += 1
    assert paths[0][:common] == paths[1][:common]
    assert common == min(map(len, paths)) or paths[0][common] != paths[1][common]


def test_another_model_shares_nothing() -> None:
    body = chat_body("x" * 400)
    assert not set(api.chain_blocks(read(body), [], 4)) & set(
        api.chain_blocks(read({**body, "model": "m"}), [], 4)
    )


def test_parts_and_plain_text_are_the_same_prompt() -> None:
    parts = chat_body("hello")
    parts["messages"][0]["content"] = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    assert read(parts).text == read(chat_body("hello")).text


def test_frames_are_json_with_one_token_each() -> None:
    for chat in (True, False):
        frames = sse.Frames('id"with quotes', 7, "m", chat=chat)
        pieces = [frames.token(" the"), frames.token(" end", "stop"), frames.usage(sse.Usage(5, 2, 3))]
        if chat:
            pieces.insert(0, frames.role())
        chunks = [json.loads(piece.removeprefix(b"data: ")) for piece in pieces]
        assert {chunk["id"] for chunk in chunks} == {'id"with quotes'}
        assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
        assert chunks[-1]["usage"]["total_tokens"] == 7
        assert chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}


async def test_a_delay_line_keeps_order_and_forgets_when_closed() -> None:
    loop = asyncio.get_running_loop()
    line, seen, done = DelayLine(loop, 0.01), [], asyncio.Event()
    start_s = loop.time()
    for index in range(50):
        line.run_later(lambda index=index: seen.append(index))  # type: ignore[misc]  # bound per turn
    line.run_later(done.set)
    assert seen == []
    await done.wait()
    assert seen == list(range(50))
    assert loop.time() - start_s >= 0.009
    line.run_later(lambda: seen.append(99))
    line.close()
    await asyncio.sleep(0.02)
    assert 99 not in seen


def test_histograms_are_cumulative() -> None:
    histogram = Histogram()
    for seconds in (0.02, 0.3, 500.0):
        histogram.observe(seconds)
    text = "\n".join(histogram.lines("h", 'a="b"'))
    assert metric(text, "h_bucket", {"le": "0.025"}) == 1
    assert metric(text, "h_bucket", {"le": "0.5"}) == 2
    assert metric(text, "h_bucket", {"le": "+Inf"}) == metric(text, "h_count") == 3
    assert metric(text, "h_sum") == 500.32
