"""Prompts are counted by their model's own tokenizer where it is to be had, else by the learned estimate."""

from __future__ import annotations

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.acceptance.kit import MODEL, QUICK, run, serving, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.acceptance.kit import Stack

#: Three words around each message, and one at the end.
TEMPLATE = "{% for m in messages %}begin {{ m.role }} : {{ m.content }} {% endfor %}answer"
TEXT = "antidisestablishmentarianism " * 40
COUNTED = 40 + 3 + 1
ESTIMATED = pytest.approx(len(TEXT) / 4, rel=0.05)
#: A model as engines list it.
SERVED = "org/tiny"
REPLICA = f"a,model={SERVED}"


def write_model(folder: Path) -> None:
    """Write the files of a model whose tokens are words."""
    folder.mkdir(parents=True)
    words = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))


def prompt_tokens(stack: Stack, **fields: Any) -> int:
    """Ask for a chat; its prompt's tokens as the decision has them."""
    decision = stack.chat(TEXT, **fields).headers["x-epp-decision-id"]
    told = json.loads(stack.epp("explain", "--url", stack.picker_url, "--json", decision))
    return int(told["request"]["prompt_tokens"])


def test_a_model_with_a_tokenizer_is_counted_and_another_is_estimated(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    with serving(tmp_path, "a", tokens={**QUICK["tokens"], "models": {MODEL: {"source": "model"}}}) as stack:
        assert [prompt_tokens(stack) for _ in range(2)] == [COUNTED] * 2
        assert prompt_tokens(stack, model="another") == ESTIMATED
        assert prompt_tokens(stack, chat_template="its own") == ESTIMATED
        assert stack.metric("epp_token_estimates_total", reason="template") == 1


@pytest.mark.parametrize(
    ("files", "key", "named"),
    [
        ((), "source", "model"),
        (("tokenizer_config.json",), "source", "tokenizer.json"),
        (("tokenizer.json",), "chat_template", "chat template"),
    ],
)
def test_a_missing_file_is_named_at_the_start_with_key_and_fix(
    tmp_path: Path, files: tuple[str, ...], key: str, named: str
) -> None:
    write_model(tmp_path / "whole")
    for name in files:
        (tmp_path / "model").mkdir()
        (tmp_path / "whole" / name).rename(tmp_path / "model" / name)
    (tmp_path / "endpoints.yaml").write_text("endpoints: []")
    listen = dict.fromkeys(("grpc", "http", "first_token"), "127.0.0.1:0")
    config = {"listen": listen, "tokens": {"models": {"m": {"source": "./model"}}}}
    (tmp_path / "epp.yaml").write_text(json.dumps(config))
    said = run("serve", "--config", str(tmp_path / "epp.yaml"), status=2)
    assert f"tokens.models.m.{key}" in said
    assert named in said
    assert "give" in said or "name" in said


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The Hugging Face cache of this test's processes."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    return tmp_path / "hf" / "hub"


def counted_by(stack: Stack, what: str, model: str = SERVED) -> bool:
    return stack.metric("epp_model_tokens_counted", model_name=model, by=what) == 1


def doctor(stack: Stack) -> str:
    until(lambda: stack.metric("epp_endpoint_rtt_seconds"))  # without one there are findings
    return stack.epp("doctor", "--config", "epp.yaml", "--no-requests")


@pytest.mark.parametrize("place", ["cache", "folder"])
def test_a_served_model_s_own_tokenizer_counts_where_it_is_at_hand(
    tmp_path: Path, cache: Path, place: str
) -> None:
    folder = {"cache": cache / "models--org--tiny" / "snapshots" / "f00", "folder": tmp_path / "tiny"}[place]
    name = {"cache": SERVED, "folder": str(folder)}[place]
    write_model(folder)
    with serving(tmp_path, f"a,model={name}") as stack:
        until(lambda: counted_by(stack, "tokenizer", name))
        assert prompt_tokens(stack, model=name) == COUNTED
        assert f"tokens of {name} are counted by its tokenizer in {folder}" in stack.picker.log()
        assert f"counted by the model's tokenizer: {name}" in doctor(stack)


def test_without_one_the_estimate_serves_and_is_named(tmp_path: Path, cache: Path) -> None:
    with serving(tmp_path, REPLICA) as stack:
        until(lambda: f"tokens of {SERVED} are estimated: no tokenizer of {SERVED}" in stack.picker.log())
        assert counted_by(stack, "estimate")
        assert not cache.exists()
        assert prompt_tokens(stack, model=SERVED) == ESTIMATED
        assert f"tokens are estimated, the picker's log says why: {SERVED}" in doctor(stack)


@contextmanager
def hub(folder: Path) -> Iterator[str]:
    """Serve a model's files as the hub does."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    commit = "c0ffee" * 7

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.partition("?")[0].rpartition("/")[2]
            tree = [{"type": "file", "path": each, "size": len(files[each]), "oid": "0"} for each in files]
            listing = tree if "/tree/" in self.path else {"id": SERVED, "sha": commit, "siblings": []}
            body = files.get(name, json.dumps(listing).encode())
            self.send_response(200)
            for header, value in {"etag": f'"{len(body):040}"', "x-repo-commit": commit}.items():
                self.send_header(header, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815  # the server calls it by this name

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_tokenizer_is_downloaded_where_a_key_allows_it(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "model")
    with hub(tmp_path / "model") as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        with serving(tmp_path, REPLICA, tokens={**QUICK["tokens"], "tokenizer": "download"}) as stack:
            until(lambda: counted_by(stack, "tokenizer"))
            assert prompt_tokens(stack, model=SERVED) == COUNTED
    assert list(cache.glob("models--org--tiny/snapshots/*/tokenizer.json"))
