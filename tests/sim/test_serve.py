from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from urllib.request import urlopen

import pytest

from epp.errors import ConfigError
from epp.lab.sim.serve import add_arguments, replica_configs
from tests.kit.replicas import chat_body

_MAIN = """
import argparse, sys
from epp.lab.sim.serve import add_arguments, run
parser = argparse.ArgumentParser()
add_arguments(parser)
sys.exit(run(parser.parse_args()))
"""


def parse(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(argv)


def test_one_replica_from_plain_options() -> None:
    (config,) = replica_configs(
        parse(
            "--port",
            "9001",
            "--engine-class",
            "h100",
            "--region-rtt-ms",
            "102",
            "--model",
            "a",
            "--model",
            "b",
        )
    )
    assert (config.port, config.engine_class.name, config.rtt_ms, config.models) == (
        9001,
        "h100",
        102.0,
        ("a", "b"),
    )
    assert config.host == "127.0.0.1"
    assert config.report_cached_tokens


def test_several_replicas_take_what_they_leave_out_from_the_options() -> None:
    configs = replica_configs(
        parse(
            "--region-rtt-ms", "5", "--no-cached-tokens",
            "--replica", "name=near,port=9001",
            "--replica", "name=far,port=9002,rtt_ms=211,class=h100",
        )
    )  # fmt: skip
    assert [(config.name, config.port, config.rtt_ms, config.engine_class.name) for config in configs] == [
        ("near", 9001, 5.0, "l40s-x2"),
        ("far", 9002, 211.0, "h100"),
    ]
    assert not any(config.report_cached_tokens for config in configs)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--replica", "nam=x"], "nam: unknown key"),
        (["--replica", "name=x,port=http"], "port: 'http'"),
        (["--replica", "name=x,class=b200"], "class: 'b200' .*h100, l20, l40s-x2"),
        (["--replica", "name=x", "--replica", "name=y,port=1"], "port: missing"),
        (["--port", "0", "--replica", "name=x", "--replica", "name=x"], "name: 'x' is given twice"),
        (["--port", "0", "--replica", "rtt_ms=1", "--replica", "rtt_ms=2"], "name: 'sim' is given twice"),
        (["--replica", "name="], "name and models"),
        (["--region-rtt-ms", "-1"], "sim: rtt_ms must be a number of milliseconds, 0 or more"),
        (["--region-rtt-ms", "nan"], "sim: rtt_ms must be"),
        (["--replica", "name=x,port=1,rtt_ms=inf"], "x: rtt_ms must be"),
        (["--port", "99999"], "port 99999 is not a number from 0 to 65535"),
        (["--replica", "name=x,port=70000"], "x: port 70000 is not"),
        (["--block-tokens", "100000000"], "block_tokens 1 to 983549"),
        (["--replica", "name=x,model="], "x: name and models"),
        (["--model", "a\nb"], "name and models"),
        (["--name", "a\r\nb"], "name and models"),
    ],
)
def test_wrong_options_are_named_with_the_fix(argv: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replica_configs(parse(*argv))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_prints_addresses_serves_and_stops_cleanly(number: signal.Signals) -> None:
    command = [sys.executable, "-c", _MAIN, "--port", "0", "--slow-start"]
    command += ["--replica", "name=a,rtt_ms=1", "--replica", "name=b,class=h100"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(2)]
            assert [line.split(":")[0] for line in lines] == ["a", "b"]
            for line in lines:
                url = line.split()[1]
                body = json.dumps(chat_body("hi " * 8000, stream=True, max_tokens=3)).encode()
                chat_url = f"{url}/v1/chat/completions"
                with urlopen(chat_url, body, timeout=10) as response:  # noqa: S310 - loopback, as printed
                    assert response.read().count(b"data: {") == 4
            process.send_signal(number)
            _, errors = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 0
    assert errors == ""


@pytest.mark.parametrize("host", ["192.0.2.1", "a..b"])
def test_an_address_that_cannot_be_had_ends_the_command_with_a_word(host: str) -> None:
    command = [sys.executable, "-c", _MAIN, "--host", host, "--port", "0"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith("cannot listen")


def test_the_help_tells_what_is_taken_where_an_option_is_left_out() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for action in parser._actions:
        if action.default not in (None, False, [], argparse.SUPPRESS):
            assert "(%(default)" in (action.help or ""), action.dest
    assert "128" in " ".join(parser.format_help().split())
