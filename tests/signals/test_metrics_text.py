from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from epp.signals import metrics_text
from epp.signals.metrics_text import EngineSample, MetricsReader, parse_metrics

VLLM = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="Qwen/Qwen3"} 7.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="Qwen/Qwen3"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 40.0
vllm:kv_cache_usage_perc{engine="0",model_name="Qwen/Qwen3"} 0.25
vllm:cache_config_info{block_size="16",cache_dtype="auto",num_gpu_blocks="1000",sliding="None"} 1.0
vllm:prefix_cache_queries_total{engine="0",model_name="Qwen/Qwen3"} 1.2e+06
vllm:prefix_cache_hits_total{engine="0",model_name="Qwen/Qwen3"} 900000
vllm:prompt_tokens_total{engine="0",model_name="Qwen/Qwen3"} 1.5E6
vllm:prompt_tokens_created{engine="0",model_name="Qwen/Qwen3"} 1.78e+09
vllm:generation_tokens_total{engine="0",model_name="Qwen/Qwen3"} 2000.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="Qwen/Qwen3"} 0.0
process_start_time_seconds 1.78203e+09
"""

SGLANG = b"""\
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="0"} 3.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",tp_rank="0"} 1.0
sglang:token_usage{engine_type="unified",model_name="m",tp_rank="0"} 0.5
sglang:max_total_num_tokens{model_name="m"} 983549.0
sglang:cache_config_info{num_pages="788766",page_size="1"} 1.0
sglang:prompt_tokens_total{model_name="m"} 100.0
sglang:generation_tokens_total{model_name="m"} 20.0
sglang:cached_tokens_total{model_name="m"} 40.0
"""

LLAMA_CPP = b"""\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 1500
llamacpp:tokens_predicted_total 64
llamacpp:requests_processing 2
llamacpp:requests_deferred 3
"""
TRTLLM = b"""\
trtllm_num_requests_running{model_name="m"} 4.0
trtllm_num_requests_waiting{model_name="m"} 5.0
trtllm_kv_cache_utilization{model_name="m"} 0.125
trtllm_kv_cache_tokens_per_block{model_name="m"} 32
trtllm_kv_cache_max_blocks{model_name="m"} 2000
"""

TRITON = b"""\
nv_trt_llm_request_metrics{model="m",request_type="waiting",version="1"} 5
nv_trt_llm_request_metrics{model="m",request_type="scheduled",version="1"} 6
nv_trt_llm_request_metrics{model="m",request_type="max",version="1"} 512
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="m",version="1"} 0.5
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="m",version="1"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="m",version="1"} 100
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="m",version="1"} 50
"""

TGI = b"""\
# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 4
tgi_batch_current_max_tokens 4096
tgi_queue_size 7
tgi_request_input_length_bucket{le="50"} 1
tgi_request_input_length_sum 900
tgi_request_generated_tokens_sum 120
"""

LMDEPLOY = b"""\
lmdeploy:num_requests_running{engine="0",model_name="m"} 3.0
lmdeploy:num_requests_waiting{engine="0",model_name="m"} 1.0
lmdeploy:num_api_requests_waiting{engine="0",model_name="m"} 6.0
lmdeploy:gpu_cache_usage_perc{engine="0",model_name="m"} 0.5
lmdeploy:prompt_tokens_total{engine="0",model_name="m"} 100.0
lmdeploy:generation_tokens_total{engine="0",model_name="m"} 20.0
"""

RAY_SERVE = b"""\
ray_vllm_num_requests_running{ReplicaId="r1",WorkerId="w",model_name="m"} 7.0
ray_vllm_num_requests_waiting{ReplicaId="r1",WorkerId="w",model_name="m"} 2.0
ray_vllm_kv_cache_usage_perc{ReplicaId="r1",WorkerId="w",model_name="m"} 0.25
ray_vllm_prompt_tokens_total{ReplicaId="r1",WorkerId="w",model_name="m"} 100.0
ray_vllm_prompt_tokens{ReplicaId="r1",WorkerId="w",model_name="m"} 100.0
ray_vllm_generation_tokens_total{ReplicaId="r1",WorkerId="w",model_name="m"} 20.0
ray_node_cpu_count{NodeAddress="10.0.0.1"} 8
"""

DYNAMO_FRONTEND = b"""\
dynamo_frontend_inflight_requests{model="m"} 10
dynamo_frontend_queued_requests{model="m"} 7
dynamo_frontend_input_sequence_tokens_sum{model="m"} 33
dynamo_frontend_output_tokens_total{model="m"} 300
"""

DYNAMO_WORKER = b"""\
dynamo_component_inflight_requests{dynamo_component="tensorrt_llm",dynamo_endpoint="generate"} 5
dynamo_component_inflight_requests{dynamo_component="tensorrt_llm",dynamo_endpoint="load_lora"} 9
dynamo_component_kvstats_gpu_cache_usage_percent{dynamo_component="tensorrt_llm"} 0.125
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (VLLM, EngineSample("vllm", 7, 2, 0.25, 16_000, 1.78203e9, 1.5e6, 2000, 16)),
        (SGLANG, EngineSample("sglang", 3, 1, 0.5, 983_549, None, 100, 20, 1, role="unified")),
        (LLAMA_CPP, EngineSample("llama.cpp", 2, 3, prompt_tokens_total=1500, generation_tokens_total=64)),
        (TRTLLM, EngineSample("trtllm", 4, 5, 0.125, 64_000)),
        (TRITON, EngineSample("triton", 6, 5, 0.5, 6_400)),
        (TRTLLM.splitlines(True)[2], EngineSample("trtllm", kv_usage=0.125)),
        (TGI, EngineSample("tgi", 4, 7, prompt_tokens_total=900, generation_tokens_total=120)),
        (LMDEPLOY, EngineSample("lmdeploy", 3, 7, 0.5, None, None, 100, 20)),
        (RAY_SERVE, EngineSample("vllm", 7, 2, 0.25, None, None, 100, 20)),
        (DYNAMO_FRONTEND, EngineSample("dynamo", 3, 7, prompt_tokens_total=33, generation_tokens_total=300)),
        (DYNAMO_WORKER, EngineSample("dynamo", 5, kv_usage=0.125)),
        (VLLM + DYNAMO_WORKER, parse_metrics(VLLM)),
        (b"", EngineSample()),
        (b"process_start_time_seconds 12.5", EngineSample(process_start_time_s=12.5)),
        (b'python_info{version="3.11"} 1\n', EngineSample()),
    ],
    ids=[
        "vllm",
        "sglang",
        "llama.cpp",
        "trtllm",
        "triton",
        "trtllm without iterations",
        "tgi",
        "lmdeploy",
        "ray serve",
        "dynamo frontend",
        "dynamo worker",
        "dynamo worker of vllm",
        "empty",
        "start only",
        "no engine",
    ],
)
def test_reads_each_engine(text: bytes, expected: EngineSample) -> None:
    assert parse_metrics(text) == expected
    assert parse_metrics(text.replace(b"\n", b"\r\n")) == expected


PAGES = (VLLM, SGLANG, LLAMA_CPP, TRTLLM, TRITON, LMDEPLOY)
QUOTED = re.compile(rb"^([a-z][a-zA-Z_:]*)(?:\{(.*)\})? ", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: parse_metrics(page).engine)
def test_names_are_known_however_they_were_changed_on_their_way(page: bytes) -> None:
    expected = parse_metrics(page)
    names = QUOTED.sub(lambda line: line[0].replace(b":", b"_"), page)
    assert parse_metrics(names) == expected
    assert parse_metrics(re.sub(rb"_total(?=[{ ])", b"", names)) == expected
    assert parse_metrics(QUOTED.sub(rb"ray_\g<0>", page)).waiting == expected.waiting
    for quoted in (rb'{"\1", \2} ', rb'{ "\1",\2 } '):
        assert parse_metrics(QUOTED.sub(quoted, page)) == expected
    assert parse_metrics(QUOTED.sub(rb'{"\1"} ', LLAMA_CPP)) == parse_metrics(LLAMA_CPP)


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (b"", True),
        (b"# HELP trtllm_x of an engine that has served nobody\n", True),
        (b"up 1\n", True),
        (b'{"vllm:num_requests_running"} 1\n', True),
        (b"[]", False),
        (b'[{"iter": 1, "numActiveRequests": 3}]', False),
        (b'{"detail": "Not Found"}', False),
        (b"null", False),
        (b"<!doctype html>", False),
    ],
)
def test_a_page_of_metrics_is_told_from_others(page: bytes, *, expected: bool) -> None:
    assert metrics_text.is_exposition(page, parse_metrics(page)) is expected


def test_data_parallel_ranks_add_up_and_shares_are_averaged() -> None:
    text = b"".join(
        b'vllm:num_requests_running{engine="%d"} %d\n' % (rank, count)
        + b'vllm:kv_cache_usage_perc{engine="%d"} 0.%d\n' % (rank, count)
        + b'vllm:cache_config_info{engine="%d",block_size="16",num_gpu_blocks="100"} 1\n' % rank
        for rank, count in enumerate((1, 2, 6))
    )
    sample = parse_metrics(text)
    assert sample.running == 9
    assert sample.kv_usage == pytest.approx(0.3)
    assert sample.kv_capacity_tokens == 4800


def test_shards_of_one_scheduler_count_once() -> None:
    text = b"".join(
        b'sglang:num_running_reqs{dp_rank="%d",tp_rank="%d",pp_rank="0"} %d\n' % (dp, tp, 10 * dp + 1)
        for dp in range(2)
        for tp in range(4)
    )
    assert parse_metrics(text).running == 1 + 11


def test_pages_size_the_cache_where_tokens_are_not_told() -> None:
    text = SGLANG.replace(b"sglang:max_total_num_tokens", b"sglang:something_else")
    assert parse_metrics(text).kv_capacity_tokens == 788_766


def test_hostile_sizes_are_cut() -> None:
    good = b"vllm:num_requests_running 1\n"
    long_line = b'vllm:num_requests_waiting{a="' + b"x" * metrics_text.MAX_LINE_BYTES + b'"} 5\n'
    assert parse_metrics(good + long_line) == EngineSample("vllm", 1)
    padding = b"#" * 100 + b"\n"
    flood = good + padding * (metrics_text.MAX_BYTES // len(padding) + 1) + b"vllm:num_requests_waiting 5\n"
    assert parse_metrics(flood) == EngineSample("vllm", 1)
    series = b"".join(b'vllm:num_requests_running{e="%d"} 1\n' % i for i in range(5000))
    assert parse_metrics(series).running == metrics_text.MAX_SERIES
    assert parse_metrics(b"x" * (metrics_text.MAX_BYTES + 1)) == EngineSample()


# Generated expositions, read by prometheus_client and summed up in the obvious way.

LABEL_VALUES = st.text(
    st.characters(codec="utf-8", exclude_characters="\r\n\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"), max_size=8
)
NUMBERS = st.one_of(
    st.integers(0, 10**9).map(float),
    st.floats(0, 1e15, allow_subnormal=False),
    st.sampled_from([math.nan, math.inf, -math.inf, -3.0]),
)
COUNTS = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:prompt_tokens_total": "prompt_tokens_total",
    "vllm:generation_tokens_total": "generation_tokens_total",
}
OTHERS = ["vllm:num_requests_running_x", "vllm:e2e_bucket", "python_gc", "sglang:gen_throughput"]


def escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@st.composite
def expositions(draw: st.DrawFn) -> str:
    lines = []
    for name in draw(st.permutations([*COUNTS, *OTHERS])):
        for rank in range(draw(st.integers(0, 3))):
            labels = {"engine": str(rank), "model_name": draw(LABEL_VALUES)}
            inner = ",".join(f'{key}="{escape(value)}"' for key, value in labels.items())
            number = draw(NUMBERS)
            shown = draw(st.sampled_from([repr(number), f"{number:e}", f"{number:.3f}", f"{number:+E}"]))
            lines.append(f"{name}{{{inner}}}{draw(st.sampled_from([' ', '  ']))}{shown}")
        lines += draw(st.lists(st.sampled_from(["", "# a comment", "# HELP x y"]), max_size=2))
    return "\n".join(lines) + draw(st.sampled_from(["", "\n"]))


def reference(text: str) -> dict[str, float]:
    series: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in COUNTS and 0 <= sample.value < math.inf:
                key = (sample.name, tuple(sorted(sample.labels.items())))
                series[key] = max(sample.value, series.get(key, 0.0))
    totals: dict[str, float] = {}
    for (name, _), value in series.items():
        totals[COUNTS[name]] = totals.get(COUNTS[name], 0.0) + value
    return totals


@given(expositions())
def test_agrees_with_a_general_parser(text: str) -> None:
    sample, expected = parse_metrics(text.encode()), reference(text)
    if sample.engine:
        for field in COUNTS.values():
            value = getattr(sample, field)
            assert (value is None) == (field not in expected), field
            if value is not None:
                assert value == pytest.approx(expected[field]), field
    else:
        assert "vllm:num_requests_running{" not in text
        assert "vllm:num_requests_waiting{" not in text


PLACES = [b"} 7.0", b"} 2.0", b"} 0.25", b"} 1.2e+06", b"} 900000", b"} 1.5E6", b"} 2000.0", b"} 0.0"]
FURTHER = [
    b'vllm:num_requests_running{engine="1",model_name="Qwen/Qwen3"} 30\n',
    b'vllm:request_success_total{engine="0",finished_reason="stop"} 5\n',
    b'vllm:num_requests_waiting{engine="0",model_name="Qwen/Qwen3"} 9 1712345678901 # {x="y"} 1\n',
    b"# a comment\n",
    b"trtllm_num_requests_running 4\n",
]
SHOWN = st.sampled_from([b"0", b"1.0", b"12345.678901", b"NaN", b"-1", b"x", b"", b"  5", b"7 1712345678901"])


@st.composite
def pages(draw: st.DrawFn) -> list[bytes]:
    """Expositions of one engine: numbers change, lines come and go and change places.

    But the shortest stay: that one of them left is not noticed, and then a series may take its place.
    """
    found, lines = [], VLLM.splitlines(keepends=True)
    for _ in range(draw(st.integers(2, 8))):
        how = draw(st.sampled_from(["numbers", "numbers", "more", "less", "order", "same"]))
        if how == "more":
            lines.insert(draw(st.integers(0, len(lines))), draw(st.sampled_from(FURTHER)))
        elif how == "less" and (long := [at for at, line in enumerate(lines) if len(line) > 20]):
            del lines[draw(st.sampled_from(long))]
        elif how == "order":
            lines = draw(st.permutations(lines))
        text = b"".join(lines)
        if how == "numbers":
            for place in draw(st.lists(st.sampled_from(PLACES), max_size=3)):
                text = text.replace(place, b"} " + draw(SHOWN))
        found.append(text)
    return found


@given(pages())
def test_what_is_remembered_of_a_page_changes_nothing_in_the_next(texts: list[bytes]) -> None:
    reader = MetricsReader()
    for text in texts:
        assert reader.read(text) == parse_metrics(text)


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_no_bytes_make_a_reader_raise_either(noises: list[bytes]) -> None:
    reader = MetricsReader()
    for noise in noises:
        text = b"vllm:num_requests_running 1\n" + noise + b"\nvllm:num_requests_waiting 2\n"
        assert reader.read(text) == parse_metrics(text)


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("vllm:num_requests_running", b'engine="0",model_name="m"', b'engine="1",model_name="m"'),
        ("vllm:num_requests_running", b'engine="9"', b'engine="10"'),  # of a node that serves these alone
        ("sglang:num_running_reqs", b'dp_rank="0",tp_rank="0"', b'dp_rank="1",tp_rank="1"'),
    ],
)
def test_a_rank_s_numbers_are_those_under_its_label_and_those_of_all(
    name: str, first: bytes, second: bytes
) -> None:
    page = b"process_start_time_seconds 5\n%s{%s} 3\n%s{%s} 7\n" % (
        name.encode(),
        first,
        name.encode(),
        second,
    )
    readers = [MetricsReader(rank, 2) for rank in range(2)]
    for shown, other in ((page, 7.0), (page.replace(b" 7", b" 8"), 8.0)):
        samples = [reader.read(shown) for reader in readers]
        assert [each.running for each in samples] == [3.0, other]
        assert {each.process_start_time_s for each in samples} == {5.0}


def test_a_rank_that_alone_is_shown_is_the_one_of_its_number() -> None:
    page = b'sglang:num_running_reqs{dp_rank="1"} 7\n'
    assert [MetricsReader(rank, 2).read(page).running for rank in range(2)] == [None, 7.0]
