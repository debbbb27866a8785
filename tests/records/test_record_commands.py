"""The commands on records, as people run them."""

from __future__ import annotations

import contextlib
import io
import json
import re
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from epp.cli import main
from epp.errors import EppError
from epp.ops import explain
from epp.ops import feedback as feedback_command
from epp.ops import records_filter as record_filter
from epp.ops import records_show as record_show
from epp.ops.records_follow import Follower, Narrator
from epp.policies.gorgo_ms import GorgoMs
from epp.records import verify as record_verify
from epp.records.files import read_records, record_files
from epp.records.query import Query
from epp.records.schema import decision_of
from epp.schedule.decision import outcome_record, to_record
from epp.server.sockets import listening_sockets
from epp.signals.paths import Travelled
from tests.kit.records import ask_of, command, decided, outcome_of, picker_of, record_all, recorder_to

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Thirty gorgo requests and ten random ones; the last of each never ended."""
    for policy, number in (("gorgo", 30), ("random", 10)):
        requests = decided(number, policy, prefix=policy)
        with recorder_to(tmp_path / "records") as (recorder, _):
            for index, (decision, ask) in enumerate(requests):
                recorder.decision(decision, ask)
                cause = "completed" if index % 3 else "client-gone"
                if index < number - 1:
                    recorder.outcome(outcome_of(decision, cause=cause), decision.at_wall_s + 0.5)
    return tmp_path / "records"


def ids(text: str) -> set[str]:
    return {json.loads(line)["id"] for line in text.splitlines()}


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ([], 40),
        (["--policy", "random"], 10),
        (["--cause", "client-gone"], 13),
        (["--cause", "none"], 2),
        (["--policy", "random", "--cause", "completed"], 6),
        (["--model", "m"], 40),
        (["--model", "other"], 0),
        (["--since", "2023-11-14T22:13:40Z"], 10),
        (["--until", "2023-11-14T22:13:24+00:00"], 10),
        (["--since", "1h"], 0),
        (["--until", "1d"], 40),
    ],
)
def test_filter(folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], count: int) -> None:
    assert command(record_filter, folder, *words) == 0
    assert len(ids(capsys.readouterr().out)) == count


def test_filter_by_endpoint_and_read_its_output(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {}
    for number in range(3):
        command(record_filter, folder, "--endpoint", f"10.0.0.{number}:8000")
        out = capsys.readouterr().out
        found[number] = ids(out)
        (tmp_path / "some.jsonl").write_text(out)
        if out:
            command(record_verify, tmp_path / "some.jsonl")
            assert "all identical" in capsys.readouterr().out
    assert sum(len(part) for part in found.values()) == 40


def test_what_is_no_terminal_gets_whole_columns(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert command(record_show, folder, "--limit", 1, "--policy", "gorgo", "--cause", "completed") == 0
    text = capsys.readouterr().out
    assert re.search(r"10\.0\.0\.\d:8000", text)
    assert "completed" in text


def test_show(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert command(record_show, folder, "--limit", 5, "--policy", "gorgo") == 0
    out = capsys.readouterr().out
    assert "5 of 30 requests" in out
    assert [f"gorgo-{number}" in out for number in (24, 25, 29)] == [False, True, True], "the newest"
    assert "12.5" in out
    assert "client-gone 200" in out


def test_what_holds_no_records_is_told(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, empty = tmp_path / "epp.yaml", tmp_path / "empty"
    other.write_text("policy: {name: gorgo}\n{}\n")
    empty.mkdir()
    for place in (other, empty):
        with pytest.raises(EppError, match=rf"{place.name}: nothing in it is a record"):
            command(record_show, place)
    header = record_files(folder)[0].read_text().splitlines()[0]
    (tmp_path / "fresh.jsonl").write_text(header + "\n")
    assert command(record_show, tmp_path / "fresh.jsonl") == 0
    assert "0 of 0 requests" in capsys.readouterr().out
    with pytest.raises(EppError, match="--limit must be at least 0, not -1"):
        command(record_show, folder, "--limit", -1)


def test_a_time_that_is_none_is_told(folder: Path) -> None:
    with pytest.raises(EppError, match="'yesterday' is neither"):
        command(record_show, folder, "--since", "yesterday")
    with pytest.raises(EppError, match="'0001-01-01' is neither an ISO 8601 time"):
        command(record_show, folder, "--since", "0001-01-01")  # no time yet, west of Greenwich or not


def test_verify_tells_what_differs_and_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(record_verify, folder) == 0
    assert "40 decisions run again: all identical" in capsys.readouterr().out
    path = record_files(folder)[0]
    lines = path.read_text().splitlines()
    forged = json.loads(lines[1])
    forged["signals"]["rtt_ms"][forged["chosen"]] = 1e6
    path.write_text("\n".join([lines[0], json.dumps(forged), *lines[2:], ""]))
    assert command(record_verify, folder) == 1
    out = capsys.readouterr().out
    assert f"{forged['id']}: chose" in out
    assert "40 decisions run again: 1 differ" in out
    assert command(record_verify, folder, "--policy", "random") == 0


def test_verify_of_nothing_proves_nothing(tmp_path: Path) -> None:
    with pytest.raises(EppError, match="nothing was verified"):
        command(record_verify, tmp_path)


def test_a_folder_that_is_a_link_to_itself_is_none(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(EppError, match="loop is not a folder of records: Too many levels"):
        command(record_verify, loop)


def test_explain_with_what_came_of_it(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert command(explain, "gorgo-3", "--records", folder) == 0
    out = capsys.readouterr().out
    assert "gorgo-3" in out
    assert "TTFT 12.5 ms, E2E 80.2 ms, 16 tokens answered, 1,024 cached where 0 were expected" in out
    command(explain, "--records", folder)
    out = capsys.readouterr().out
    assert "gorgo-29" in out
    assert "TTFT" not in out, "it has not ended"
    command(explain, "random-2", "--records", folder, "--json")
    record = json.loads(capsys.readouterr().out)
    assert (record["id"], record["outcome"]["id"]) == ("random-2", "random-2")
    with pytest.raises(EppError, match="no decision 'zzz'"):
        command(explain, "zzz", "--records", folder)


def test_explain_takes_the_start_of_a_single_id(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(explain, "gorgo-2", "--records", folder, "--json")
    assert json.loads(capsys.readouterr().out)["id"] == "gorgo-2", "though others begin like it"
    with pytest.raises(
        EppError, match=r"30 decisions in .* begin with 'gorgo': gorgo-0, gorgo-1, gorgo-2, \.\.\.$"
    ):
        command(explain, "gorgo", "--records", folder)
    assert command(explain, "random-9", "--records", folder, "--json") == 0
    assert json.loads(capsys.readouterr().out)["id"] == "random-9"


@pytest.mark.parametrize("words", [["explain"], ["feedback", "gorgo-3", "--correct"]])
def test_a_picker_that_does_not_answer_is_told_with_where_to_look(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with listening_sockets("127.0.0.1:0")[0] as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    assert main([*words, "--url", f"http://{address}"]) == 2
    assert "Connection refused (--url is the picker's listen.http; does it run?)" in capsys.readouterr().err
    assert main([*words, "--url", address]) == 2
    assert f"{address} is not an http address, e.g. http://{address}" in capsys.readouterr().err


def test_explain_shows_where_round_trips_come_from_and_how_fast_engines_are() -> None:
    picker = picker_of()
    first, second = (endpoint.address for _, endpoint in picker.fleet.members[:2])
    for slot, rtt_ms in ((0, 11.0), (1, 22.0)):
        picker.fleet.rtt.observe(slot, rtt_ms, 0.0)
    picker.fleet.rtt.connected(1, 21.0, 0.0)
    decision = picker.pick(ask_of(1), 0.0, 0.0)
    record = json.loads(json.dumps(to_record(decision)))
    assert record["rtt_sources"]["connect"] == [1]
    assert 0 in record["rtt_sources"]["probe"]
    again = decision_of(record)
    assert to_record(again)["rtt_sources"] == record["rtt_sources"]
    out = io.StringIO()
    for part in explain.explain(record):
        Console(file=out, width=300).print(part)
    text = out.getvalue()
    rates = picker.fleet.rates.of(0)
    for words in (first, second, "rtt by", "connect", "probe", f"{rates.prefill_ms_per_token * 1e3:.1f}"):
        assert words in text
    del record["rtt_sources"]
    assert decision_of(record).fleet.rtt_sources is None, "older records do not tell"


def test_explain_shows_connections_where_somebody_told_of_them() -> None:
    picker, shown = picker_of(), []
    for told in (None, Travelled(anew=True, opened_ms=123.0)):
        if told is not None:
            picker.fleet.paths.observe(0, 0, told, rtt_ms=100.0, body_bytes=70_000)
        record = json.loads(json.dumps(to_record(picker.pick(ask_of(1), 0.0, 0.0))))
        out = io.StringIO()
        for part in explain.explain(record):
            Console(file=out, width=300).print(part)
        shown.append(out.getvalue())
    without, with_them = shown
    assert "opens a connection" not in without
    for words in ("opens a connection", "95%", "123"):
        assert words in with_them


def test_follow_tells_each_event_once_over_rotations(tmp_path: Path) -> None:
    requests = decided(40)
    record_all(tmp_path, requests[:10])
    follower = Follower(tmp_path, from_start=False)
    narrator = Narrator(Query())
    assert list(follower.new()) == []
    told = []
    for start in range(10, 40, 10):
        record_all(tmp_path, requests[start : start + 10], max_bytes=200_000, file_bytes=20_000)
        told += [narrator.tell(record) for record in follower.new()]
    lines = [line for line in told if line]
    assert len(lines) == 60
    for decision, _ in requests[10:]:
        mine = [line for line in lines if f" {decision.id} " in line]
        assert f"-> {decision.endpoint} by gorgo" in mine[0]
        assert "completed 200" in mine[1]


def test_follow_with_conditions(folder: Path) -> None:
    def told(query: Query) -> int:
        narrator = Narrator(query)
        return sum(bool(narrator.tell(record)) for record in read_records(folder))

    assert told(Query(policy="random")) == 19
    assert told(Query(cause="client-gone")) == 13 + 0, "at the end, when it is known"
    assert told(Query(since_s=2e9)) == 0


def test_follow_tells_who_served_it() -> None:
    (decision, _), *_ = decided(1, "gorgo")
    outcome = outcome_of(decision, cause="retried-elsewhere", served="10.9.9.9:8000")
    narrator = Narrator(Query())
    narrator.tell(json.loads(json.dumps(to_record(decision))))
    told = narrator.tell(outcome_record(outcome, decision.at_wall_s))
    assert "retried-elsewhere 200 at 10.9.9.9:8000," in told


def test_explain_tells_how_urgent_a_request_was_where_the_policy_knows() -> None:
    picker, heads = picker_of(GorgoMs.name), []
    for number in range(30):
        record = json.loads(json.dumps(to_record(picker.pick(ask_of(number), 0.0, 0.0))))
        heads.append((record, str(next(iter(explain.explain(record))))))
    (first, told), (last, told_later) = heads[0], heads[-1]
    assert f"first token in {first['least_first_token_ms']:,.0f} ms at best" in told
    assert "usually" not in told, "nothing is usual yet"
    assert f"at best, usually {last['request']['usual_first_token_ms']:,.0f}\n" in told_later
    assert decision_of(last).ranking.least_first_token_ms == last["least_first_token_ms"]
    del last["least_first_token_ms"]
    assert "first token" not in str(next(iter(explain.explain(last)))), "older records do not tell"
    other = to_record(picker_of("random").pick(ask_of(1), 0.0, 0.0))
    assert "first token" not in str(next(iter(explain.explain(other)))), "nor do policies that foretell none"


@contextmanager
def speaking_http2() -> Iterator[str]:
    """A port that greets whoever comes as the picker's gRPC side does; its address as a URL."""

    def greet() -> None:
        with contextlib.suppress(OSError):
            connection, _ = listening.accept()
            with connection:
                connection.sendall(bytes.fromhex("0000060400000000000004 0000ffff"))
                connection.recv(65536)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=greet)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(("module", "words"), [(explain, []), (feedback_command, ["--wrong"])])
def test_asking_what_is_no_http_is_told_in_a_sentence(module: Any, words: list[str]) -> None:
    with speaking_http2() as url, pytest.raises(EppError, match=url):
        command(module, "id-1", *words, "--url", url)
    for url in ("http://host:port", "http://[::1"):
        with pytest.raises(EppError, match="http://"):
            command(module, "id-1", *words, "--url", url)


@pytest.mark.parametrize("name", ["id-1 ", "id-1\n", "é", "a/b?c#d"])
@pytest.mark.parametrize(("module", "words"), [(explain, []), (feedback_command, ["--correct"])])
def test_an_id_with_other_characters_than_ids_have_goes_to_the_picker(
    module: Any, words: list[str], name: str
) -> None:
    with pytest.raises(EppError, match="Connection refused"):
        command(module, name, *words, "--url", "http://127.0.0.1:1")
