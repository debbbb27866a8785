"""Bodies whose engines read no prefix cache, or a part of it, and bodies of several prompts: what is expected
of them and what they teach."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from epp.apis.registry import find_parser
from epp.apis.usage import Usage
from epp.prefix_cache.blocks import MAX_PROMPTS
from epp.records.schema import decision_of
from epp.schedule.decision import outcome_record, to_record
from epp.signals.duration import predict_duration
from epp.signals.ledger import DECODING
from epp.tokens.estimate import EstimateCounter
from tests.kit.records import HASHER, POOL, WALL_S, picker_of

if TYPE_CHECKING:
    from epp.schedule.decision import Decision
    from epp.schedule.scheduler import Scheduler
    from epp.types import RequestInfo

Body = dict[str, Any]
COMPLETIONS, CHAT, GENERATE = "/v1/completions", "/v1/chat/completions", "/generate"
TEXT, OTHER = "a text that goes on and on; " * 800, "another text, as long as that; " * 800
SAID = {"messages": [{"role": "user", "content": TEXT}]}


def info(path: str, **body: Any) -> RequestInfo:
    parser = find_parser("POST", path, {})
    assert parser is not None
    parsed = parser.parse(json.dumps({"model": "m"} | body).encode(), {})
    return HASHER.measure(parsed, EstimateCounter())


def served(scheduler: Scheduler, request: RequestInfo, cached: int | None, at_s: float = 0.0) -> Decision:
    decision = scheduler.decide(request, at_s, WALL_S)
    scheduler.response_started(decision.id, 200)
    scheduler.observed(decision.id, usage=Usage(request.prompt_tokens, 5, cached))
    scheduler.end(decision.id, "completed", at_s + 1.0)
    return decision


NO_READERS: list[tuple[str, Body, Body]] = [
    (COMPLETIONS, {"prompt": TEXT}, {"prompt_logprobs": 0}),
    (COMPLETIONS, {"prompt": TEXT}, {"echo": True, "logprobs": 0}),
    (COMPLETIONS, {"prompt": TEXT}, {"cache_prompt": False}),
    (CHAT, SAID, {"prompt_logprobs": -1}),
    (CHAT, SAID, {"echo": True}),
    (CHAT, SAID, {"cache_prompt": False}),
    (GENERATE, {"text": TEXT}, {"return_logprob": True, "logprob_start_len": 0}),
    (GENERATE, {"text": [TEXT]}, {"return_logprob": [True], "logprob_start_len": [0]}),
    ("/pooling", {"input": TEXT}, {"task": "token_embed"}),
    ("/pooling", {"input": TEXT}, {"task": "token_classify"}),
]


@pytest.mark.parametrize(("path", "body", "more"), NO_READERS)
def test_one_that_reads_no_cache_expects_no_hit_and_teaches_none_but_is_held(
    path: str, body: Body, more: Body
) -> None:
    scheduler, plain, unread = picker_of(), info(path, **body), info(path, **body, **more)
    assert unread.blocks == plain.blocks, "what it leaves in the cache is the same"
    chosen = served(scheduler, unread, 0).endpoint
    warm = served(scheduler, plain, plain.prompt_tokens, 1.0)
    assert (warm.endpoint, warm.snapshot.cached_tokens.max() > 0.9 * plain.prompt_tokens) == (chosen, True)
    ratios = scheduler.datastore.calibration.hit_ratio.copy()
    for turn in range(40):
        decision = served(scheduler, unread, 0, 2.0 + turn)
        assert not decision.snapshot.cached_tokens.any()
        assert set(decision.snapshot.uncached_tokens) == {unread.prompt_tokens}
    assert scheduler.datastore.calibration.hit_ratio.tolist() == ratios.tolist()
    held = scheduler.decide(plain, 100.0, WALL_S).snapshot
    assert held.cached_tokens.max() == warm.snapshot.cached_tokens.max(), "nor is less believed to be held"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": TEXT, "echo": True}),
        (COMPLETIONS, {"prompt": TEXT, "logprobs": 3}),
        (CHAT, SAID | {"logprobs": True, "top_logprobs": 5, "cache_prompt": True}),
        (GENERATE, {"text": TEXT, "return_logprob": True}),
        (GENERATE, {"text": TEXT, "return_logprob": True, "logprob_start_len": -1}),
        (GENERATE, {"text": TEXT, "logprob_start_len": 0}),
        ("/pooling", {"input": TEXT, "task": "embed"}),
        ("/pooling", {"input": TEXT}),
    ],
)
def test_probabilities_of_the_answer_alone_leave_the_cache_readable(path: str, body: Body) -> None:
    assert info(path, **body).readable_tokens is None


def test_a_hit_reaches_no_further_than_the_first_probability_that_is_asked_for() -> None:
    scheduler = picker_of()
    served(scheduler, info(GENERATE, text=TEXT), 0)
    asked = info(GENERATE, text=TEXT, return_logprob=True, logprob_start_len=1000)
    assert served(scheduler, asked, 1000, 1.0).snapshot.cached_tokens.max() == 1000.0


def test_embeddings_that_sglang_takes_without_its_cache_alone_are_not_held() -> None:
    scheduler, tensors = picker_of(), info(GENERATE, input_embeds=[[0.5] * 3000])
    served(scheduler, tensors, 0)
    assert not scheduler.decide(tensors, 1.0, WALL_S).snapshot.cached_tokens.any()


def test_tgis_own_requests_are_read_as_what_they_are() -> None:
    plain = info(GENERATE, inputs=TEXT, parameters={"max_new_tokens": 20})
    assert (plain.blocks, plain.max_output_tokens) == (info(COMPLETIONS, prompt=TEXT).blocks, 20)
    cut = info(GENERATE, inputs=TEXT, parameters={"truncate": 1000, "best_of": 3})
    assert (cut.prompt_tokens, cut.sequences, cut.blocks) == (1000, 3, ())
    detailed = info(GENERATE, inputs=TEXT, parameters={"decoder_input_details": True})
    assert detailed.readable_tokens == 0


def test_several_prompts_hit_what_each_of_them_finds_whatever_their_order() -> None:
    scheduler = picker_of("least-request", pool=POOL[:1])
    first, second = (info(COMPLETIONS, prompt=text) for text in (TEXT, OTHER))
    for number, one in enumerate((first, second)):
        served(scheduler, one, 0, float(number))
    both = info(COMPLETIONS, prompt=[OTHER, TEXT])
    assert both.prompt_tokens == pytest.approx(first.prompt_tokens + second.prompt_tokens, abs=2)
    decision = served(scheduler, both, first.prompt_tokens, 5.0)
    assert decision.snapshot.cached_tokens[0] > 0.95 * both.prompt_tokens
    assert scheduler.datastore.calibration.hit_ratio[0] == 1.0, "vLLM tells the last prompt's cached tokens"
    ids = [list(range(5000, 6000)), list(range(9000))]
    served(scheduler, info(COMPLETIONS, prompt=ids), None, 6.0)
    again = scheduler.decide(info(COMPLETIONS, prompt=ids[1]), 7.0, WALL_S)
    assert again.snapshot.cached_tokens[0] > 8900


def test_prompts_beyond_the_bound_are_counted_and_not_looked_up_one_by_one() -> None:
    many = info(COMPLETIONS, prompt=["a few words of it"] * (MAX_PROMPTS + 1))
    assert (many.prompts, many.more) == (MAX_PROMPTS + 1, ())
    assert many.context_tokens == pytest.approx(many.prompt_tokens / many.prompts, abs=1)


def test_a_prompt_that_the_engine_cuts_costs_what_is_left_of_it() -> None:
    whole = info(COMPLETIONS, prompt=TEXT)
    end = info(COMPLETIONS, prompt=TEXT, truncate_prompt_tokens=1000)
    assert (end.prompt_tokens, end.context_tokens, end.text_bytes) == (1000, 1000, 0)
    assert not end.blocks, "nobody knows where its end begins"
    assert end.readable_tokens == 0
    start = info(COMPLETIONS, prompt=TEXT, truncate_prompt_tokens=1000, truncation_side="right")
    assert start.prompt_tokens == 1000
    assert start.blocks == whole.blocks[: int(1000 / whole.block_tokens)]
    assert start.readable_tokens is None
    assert info("/v1/embeddings", input=TEXT, truncate_prompt_tokens=1000).blocks == start.blocks, (
        "models that pool keep the beginning"
    )
    long = info(COMPLETIONS, prompt=TEXT, truncate_prompt_tokens=100_000)
    assert long == whole, "shorter than that, it is not cut"
    both = info(COMPLETIONS, prompt=[TEXT, TEXT[:400]], truncate_prompt_tokens=1000, truncation_side="right")
    assert (both.prompt_tokens, both.blocks, both.more, both.readable_tokens) == (2000, (), (), 0)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": TEXT, "truncate_prompt_tokens": -1}),
        ("/v1/responses", {"input": TEXT, "truncation": "auto"}),
    ],
)
def test_a_prompt_that_the_engine_cuts_to_fit_fits_everywhere(path: str, body: Body) -> None:
    assert info(path, **body).context_tokens == 0


@pytest.mark.parametrize(
    ("path", "body", "choices", "sequences"),
    [
        (CHAT, SAID | {"n": 8}, 8, 8),
        (CHAT, SAID | {"n": 4, "use_beam_search": True}, 4, 4),
        (CHAT, SAID | {"n": 2, "best_of": 8}, 2, 8),
        (CHAT, SAID | {"n": "3"}, 3, 3),
        (CHAT, SAID | {"n": None, "best_of": []}, 1, 1),
        (COMPLETIONS, {"prompt": [TEXT, OTHER], "n": 4}, 4, 8),
        (COMPLETIONS, {"prompt": TEXT, "n_cmpl": 3}, 3, 3),
        (GENERATE, {"text": [TEXT, OTHER], "sampling_params": [{"n": 3}, {}]}, 3, 6),
        ("/v1/embeddings", {"input": ["a", "b", "c"]}, 1, 3),
        ("/v1/rerank", {"query": "q", "documents": ["a", "b"]}, 1, 2),
    ],
)
def test_a_request_counts_as_the_sequences_that_it_makes(
    path: str, body: Body, choices: int, sequences: int
) -> None:
    scheduler, asked = picker_of("least-request", pool=POOL[:1]), info(path, **body)
    assert (asked.choices, asked.sequences) == (choices, sequences)
    first = scheduler.decide(info(CHAT, **SAID), 0.0, WALL_S)
    decision = scheduler.decide(asked, 0.0, WALL_S)
    expected = min(first.request.expected_output_tokens, asked.max_output_tokens or 1e9)
    assert decision.request.expected_output_tokens == (
        0.0 if asked.max_output_tokens == 0 else expected * sequences
    )
    ledger = scheduler.datastore.ledger
    assert ledger.running_requests[0] == 1 + sequences
    scheduler.first_token(decision.id, 1.0)
    assert ledger.block[DECODING, 0] == sequences
    scheduler.end(decision.id, "completed", 2.0)
    scheduler.end(first.id, "completed", 2.0)
    assert not ledger.block.any()


def test_the_tokens_of_several_answers_teach_the_length_and_the_pace_of_one() -> None:
    scheduler = picker_of("least-request", pool=POOL[:1])
    decision = scheduler.decide(info(CHAT, **SAID, n=8, stream=True), 0.0, WALL_S)
    scheduler.first_token(decision.id, 1.0)
    scheduler.response_started(decision.id, 200)
    scheduler.observed(decision.id, usage=Usage(5400, 8 * 101, 5400), chunks=808, last_chunk_s=3.0)
    outcome = scheduler.end(decision.id, "completed", 3.0)
    assert outcome is not None
    assert outcome.itl_ms == pytest.approx(2000.0 / 100)
    assert scheduler.datastore.answers.expected("m") == pytest.approx((128 + 101) / 2)
    assert outcome_record(outcome, WALL_S)["answers"] == 8
    assert scheduler.datastore.calibration.hit_ratio[0] == 1.0, (
        "answers find the prompt that the first of them left"
    )


def test_sequences_are_recorded_with_the_decision_that_they_priced() -> None:
    scheduler = picker_of()
    made = scheduler.decide(info(CHAT, **SAID, n=8), 0.0, WALL_S)
    record = to_record(made)
    assert (
        record["sequences"],
        "sequences" in to_record(scheduler.decide(info(CHAT, **SAID), 0.0, WALL_S)),
    ) == (
        8,
        False,
    )
    assert decision_of(record).request.sequences == 8
    one = replace(made.request, sequences=1, expected_output_tokens=made.request.expected_output_tokens / 8)
    alone = predict_duration(one, made.snapshot, made.chosen)
    assert predict_duration(made.request, made.snapshot, made.chosen).first_token_s == alone.first_token_s
