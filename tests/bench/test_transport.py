"""The transport bench measures what it says, ends clean, and says why a row is missing. Nothing timed is asserted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.transport import Result, Series, table
from bench.transport_envoy import configuration, expected_answer
from bench.transport_load import ANSWER_BODY, LoadError, request_bytes, send
from bench.transport_rows import ROWS, Row, select
from bench.transport_server import DESTINATION, DESTINATION_HEADER, body_reply, headers_reply, protobuf_answer
from epp.bench.cpu import cpu_s
from epp.pb import ext_proc_pb2 as pb
from tests.kit.envoy import require_envoy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def need_envoy() -> None:
    require_envoy()


def processes_in(folder: Path) -> list[str]:
    """Command lines of live processes that name a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line:
            found.append(line)
    return found


def bench(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs the bench with its temporary files in ``folder``."""
    return subprocess.run(
        [sys.executable, "-m", "bench.transport", *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


# ---- the whole bench


@pytest.mark.envoy
@pytest.mark.usefixtures("need_envoy")
def test_every_library_is_measured_behind_a_real_envoy_and_nothing_is_left(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    report = tmp_path / "report.json"
    names = [
        "aio-uvloop",
        "aio-raw-uvloop",
        "generator",
        "close-after-pick",
        "grpclib",
        "sync",
        "framing",
        "no-ext-proc",
    ]
    ran = bench(
        [
            "--requests",
            "12",
            "--rounds",
            "2",
            "--concurrency",
            "4",
            "--rows",
            ",".join(names),
            "--json",
            str(report),
        ],
        scratch,
    )
    assert ran.returncode == 0, ran.stderr
    result = json.loads(report.read_text())
    assert list(result["rows"]) == names
    for name, sizes in result["rows"].items():
        assert set(sizes) == {"2048", "73728"}
        for series in sizes.values():
            assert len(series["envoy_cpu_ms"]) == 2
            assert min(series["envoy_cpu_ms"]) > 0
            assert len(series["server_cpu_ms"]) == (0 if name == "no-ext-proc" else 2)
            assert all(value > 0 for value in series["server_cpu_ms"])
    assert result["rows"]["aio-uvloop"]["2048"]["ratio"] == [1.0, 1.0]
    assert all(name in ran.stdout for name in names)
    assert list(scratch.iterdir()) == []
    assert processes_in(scratch) == []


@pytest.mark.envoy
@pytest.mark.usefixtures("need_envoy")
def test_a_unix_socket_row_works() -> None:
    words = ["--requests", "4", "--rounds", "1", "--rows", "unix-socket", "--sizes", "2048"]
    with tempfile.TemporaryDirectory() as folder:  # pytest's paths can be longer than a socket's may be
        ran = bench(words, Path(folder))
    assert ran.returncode == 0, ran.stderr
    assert "unix-socket" in ran.stdout


def test_an_unknown_row_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    ran = bench(["--rows", "aio,nonsense"], tmp_path)
    assert ran.returncode == 2
    assert "nonsense" in ran.stderr
    assert "grpclib-uvloop" in ran.stderr


def test_a_server_whose_library_is_missing_says_so(tmp_path: Path) -> None:
    (tmp_path / "grpclib").mkdir()
    (tmp_path / "grpclib" / "__init__.py").write_text("raise ImportError('no grpclib here')")
    row = next(row for row in ROWS if row.name == "grpclib")
    ran = subprocess.run(
        [sys.executable, "-m", "bench.transport_server", row.to_json(), ""],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.stdout == "skip no grpclib here\n"
    assert ran.returncode == 0


# ---- rows


def test_rows_have_unique_names_and_survive_json() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert [Row.from_json(row.to_json()) for row in ROWS] == list(ROWS)


def test_groups_select_their_rows_and_tuning_starts_with_its_reference() -> None:
    assert all(row.group == "base" for row in select("base"))
    assert select("tuning")[0].name == "aio-uvloop"
    assert all(row.group == "tuning" for row in select("tuning")[1:])
    assert [row.name for row in select("sync,aio")] == ["sync", "aio"]
    with pytest.raises(KeyError, match="absent"):
        select("aio,absent")


# ---- replies


def test_replies_carry_the_destination_twice() -> None:
    request = pb.ProcessingRequest()
    request.request_body.body = b"{}"
    answer = protobuf_answer(request)
    assert answer == body_reply()
    header = answer.request_body.response.header_mutation.set_headers[0].header
    assert (header.key, header.raw_value.decode()) == (DESTINATION_HEADER, DESTINATION)
    namespace = answer.dynamic_metadata.fields["envoy.lb"].struct_value
    assert namespace.fields[DESTINATION_HEADER].string_value == DESTINATION
    request.request_headers.end_of_stream = False
    assert protobuf_answer(request) == headers_reply()


# ---- load and clocks


@pytest.mark.parametrize("size_bytes", [200, 2048, 73728])
def test_the_request_has_a_json_body_of_the_size_asked_for(size_bytes: int) -> None:
    head, _, body = request_bytes(size_bytes).partition(b"\r\n\r\n")
    assert len(body) == size_bytes
    assert f"content-length: {size_bytes}".encode() in head
    assert json.loads(body)["messages"][0]["role"] == "user"


@pytest.fixture
async def http_server() -> AsyncIterator[tuple[int, list[bytes], list[bytes]]]:
    """Port, the answers' head lines (taken in turn, the last one again and again) and the requests seen."""
    heads: list[bytes] = []
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await serve_one(reader, writer):
                pass

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        seen.append(await reader.readexactly(length))
        answer = heads[0] if len(heads) == 1 else heads.pop(0)
        if not answer:
            return False
        # In two pieces: an answer need not arrive whole.
        writer.write(answer[:9])
        await writer.drain()
        writer.write(answer[9:] + b"\r\n\r\n" + ANSWER_BODY)
        return True

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1], heads, seen
    server.close()
    await server.wait_closed()


async def test_a_burst_sends_exactly_the_requests_asked_for(
    http_server: tuple[int, list[bytes], list[bytes]],
) -> None:
    port, heads, seen = http_server
    heads.append(b"HTTP/1.1 200 OK\r\nx-by: me")
    load = await send(port, request_bytes(300), b"x-by: me\r\n", requests=25, concurrency=4)
    assert len(seen) == len(load.latencies_ms) == 25
    assert {len(body) for body in seen} == {300}


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([b"HTTP/1.1 200 OK\r\nx-by: other"], "unexpected answer"),
        ([b"HTTP/1.1 200 OK\r\nx-by: me", b"HTTP/1.1 500 no\r\nx-by: -"], "unexpected answer"),
        ([b"HTTP/1.1 504 late\r\n\r\nanother body"], "unexpected answer"),
        ([b""], "connection lost"),
    ],
)
async def test_a_wrong_answer_or_a_lost_connection_ends_the_burst(
    http_server: tuple[int, list[bytes], list[bytes]], answers: list[bytes], reason: str
) -> None:
    port, heads, _ = http_server
    heads.extend(answers)
    with pytest.raises(LoadError, match=reason):
        await send(port, request_bytes(300), b"x-by: me\r\n", requests=5, concurrency=1)


def test_another_process_s_cpu_time_is_read_while_it_runs() -> None:
    spin = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\nsys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert cpu_s(process.pid) >= 0.29
        process.communicate()


def test_a_process_that_is_gone_has_no_cpu_time() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    with pytest.raises(OSError, match=str(process.pid)):
        cpu_s(process.pid)


# ---- Envoy's configuration and the report


def test_only_rows_with_a_server_have_ext_proc_and_a_cluster() -> None:
    resources = configuration({"tcp": 1234, "uds": "/run/x.sock", "bare": None})["static_resources"]
    assert [cluster["name"] for cluster in resources["clusters"]] == ["tcp", "uds"]
    first = {
        listener["name"]: listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"][0][
            "name"
        ]
        for listener in resources["listeners"]
    }
    ext_proc = "envoy.filters.http.ext_proc"
    assert first == {"tcp": ext_proc, "uds": ext_proc, "bare": "envoy.filters.http.buffer"}


def test_an_answer_proves_both_ways_of_naming_the_destination() -> None:
    expected = expected_answer("10.0.0.1:8000")
    assert expected.count(b"10.0.0.1:8000") == 2
    assert b"200" in expected_answer(None)


def test_the_table_shows_medians_spreads_and_reasons() -> None:
    series = Series(
        server_cpu_ms=[3.0, 1.0, 2.0],
        envoy_cpu_ms=[0.5, 0.25, 0.75],
        ratio=[1.5, 1.0, 2.0],
        latency_p50_ms=[4.0, 4.0, 4.0],
        requests_per_s=[100.0, 100.0, 100.0],
    )
    text = table(
        Result(settings={"cores": 2}, skipped={"grpclib": "not installed"}, rows={"aio": {2048: series}})
    )
    assert "2.000 [1.000-3.000]" in text
    assert "1.50 [1.00-2.00]" in text
    assert "0.500 [0.250-0.750]" in text
    assert "body 2 KiB" in text
    assert "skipped: not installed" in text
