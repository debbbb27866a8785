"""Prompts are counted by their model's own tokenizer where it is to be had, else by the learned estimate."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.acceptance.kit import MODEL, run, serving

if TYPE_CHECKING:
    from pathlib import Path

    from tests.acceptance.kit import Stack

#: Three words around each message, and one at the end.
TEMPLATE = "{% for m in messages %}begin {{ m.role }} : {{ m.content }} {% endfor %}answer"
TEXT = "antidisestablishmentarianism " * 40
COUNTED = 40 + 3 + 1


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
    with serving(tmp_path, "a", tokens={"models": {MODEL: {"source": "model"}}}) as stack:
        assert [prompt_tokens(stack) for _ in range(2)] == [COUNTED] * 2
        assert prompt_tokens(stack, model="another") == pytest.approx(len(TEXT) / 4, rel=0.05)


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
