"""The compiled core decides as the interpreted one, to the last bit, and passes the same tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.compile_core import MODULES, build_tree, has_compiler, main

ROOT = Path(__file__).resolve().parent.parent.parent
#: Files that put nothing of their own in the place of a class that is compiled.
SAME_TESTS = (
    "tests/decide/test_eligibility.py",
    "tests/decide/test_picker.py",
    "tests/decide/test_select.py",
    "tests/policies/test_gorgo_ms_few.py",
    "tests/policies/test_parameter_types.py",
    "tests/signals/test_ledger.py",
    "tests/signals/test_prefix_index.py",
    "tests/signals/test_warm_index.py",
)
#: What is compiled here, as all takes twice as long; EPP_COMPILE_ALL=1 compiles all.
SOME = (
    "epp/draw.py",
    "epp/decide/arms.py",
    "epp/decide/eligibility.py",
    "epp/decide/in_flight.py",
    "epp/decide/picker.py",
    "epp/decide/prompt_roots.py",
    "epp/decide/select.py",
    "epp/decide/subset.py",
    "epp/policies/gorgo_ms.py",
    "epp/policies/laar.py",
    "epp/prompt/blocks.py",
    "epp/prompt/types.py",
    "epp/signals/capacity.py",
    "epp/signals/ledger.py",
    "epp/signals/prefix_index.py",
    "epp/signals/prefix_slot.py",
    "epp/signals/slots.py",
    "epp/signals/warm_index.py",
)
COMPILED = MODULES if os.environ.get("EPP_COMPILE_ALL") == "1" else SOME
# Half a minute of CPU; a machine that does much else takes many times as long.
pytestmark = pytest.mark.timeout(1800)


def run(tree: Path, *words: str) -> str:
    """A script's output, with the package of a tree."""
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=1700,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not has_compiler():
        pytest.skip("no C compiler here")
    target = tmp_path_factory.mktemp("compiled") / "tree"
    run(ROOT, "-m", "tools.compile_core", str(target), "--optimize", "0", "--only", *COMPILED)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "tests", target / "tests", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", target)
    return target


def test_decisions_are_the_same_to_the_last_bit(tree: Path) -> None:
    script = str(ROOT / "tests" / "compiled" / "decide_alike.py")
    kind, digest = run(tree, script).split()
    assert (kind, run(ROOT, script).split()) == ("compiled", ["interpreted", digest])


def test_the_same_tests_pass(tree: Path) -> None:
    said = run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SAME_TESTS)
    assert " passed" in said
    assert "failed" not in said


def test_every_module_of_the_list_is_compiled_and_its_source_is_still_there(tree: Path) -> None:
    assert set(SOME) <= set(MODULES)
    for module in COMPILED:
        assert (tree / module).exists()
        assert list((tree / module).parent.glob(f"{Path(module).stem}.*.so")), module
    assert not list((ROOT / "epp").rglob("*.so"))


def test_a_command_says_which_core_decides(tree: Path) -> None:
    assert run(tree, "-m", "epp", "--version").strip().endswith("core: compiled")
    assert run(ROOT, "-m", "epp", "--version").strip().endswith("core: interpreted")


def test_no_tree_is_made_where_one_is(tmp_path: Path) -> None:
    (tmp_path / "epp").mkdir()
    with pytest.raises(FileExistsError):
        build_tree(tmp_path)


def test_a_tree_that_does_not_compile_is_none_to_measure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(FileNotFoundError):
        build_tree(tmp_path, ["epp/nowhere.py"])
    assert not list(tmp_path.iterdir())
    assert main([str(tmp_path), "--only", "epp/nowhere.py"]) == 1
    assert "--only epp/nowhere.py: no such file" in capsys.readouterr().err
    (tmp_path / "epp").mkdir()
    assert main([str(tmp_path)]) == 1
    assert "has a tree already" in capsys.readouterr().err
