"""docs/llm-d.md names everything that is understood, and every test that it points to exists."""

from __future__ import annotations

import re
from pathlib import Path

from epp.llmd.catalogue import ALTERNATIVES
from epp.llmd.flags import FLAGS, read_flags
from epp.llmd.plugins import PICKERS, SCORERS, SETTINGS
from epp.llmd.settings import translate

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "llm-d.md").read_text()


def test_every_flag_and_plugin_has_a_row() -> None:
    for flag in FLAGS:
        assert f"`--{flag.name}`" in PAGE or f"`-{flag.name}`" in PAGE, flag.name
    for kind, instead in ALTERNATIVES.items():
        assert f"| `{kind}` | {instead} |" in PAGE, kind
    for kind in (*PICKERS, *SCORERS, SETTINGS):
        assert f"`{kind}`" in PAGE, kind


def test_the_tests_that_it_names_exist() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for name in re.findall(r"`(test_\w+)`", PAGE):
        assert f"def {name}(" in sources, name
    for path in re.findall(r"`(tests/[\w/.]+)`", PAGE):
        assert (ROOT / path).exists(), path


def test_its_example_is_understood() -> None:
    example = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert len(example) == 1
    config = translate(read_flags({"pool-name": "vllm"}), example[0], {}).config
    assert config.policy.name == "gorgo"
    assert config.records.folder == "/records"
