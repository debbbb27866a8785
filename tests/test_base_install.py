"""The wheels, installed where nothing else is: commands work, or name in one line the package that they need."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: The time that installing may take.
INSTALL_S = 300
LISTEN = "listen: {grpc: '127.0.0.1:0', http: '127.0.0.1:0', first_token: ''"


def pip(folder: Path, *words: str | Path) -> None:
    """Run a virtual environment's pip."""
    command = (folder / "bin" / "pip", *words)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_S)
    if done.returncode and "onnection" in done.stderr and not os.environ.get("CI"):
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts of a virtual environment with the wheel alone; its dependencies are kept until they change."""
    files = b"".join((ROOT / top / "pyproject.toml").read_bytes() for top in ("", "lab"))
    digest = hashlib.sha256(files + sys.version.encode()).hexdigest()[:12]
    folder = ROOT / "build" / f"base-{digest}"
    installed = folder / "installed"
    if not installed.exists():
        subprocess.run((sys.executable, "-m", "venv", "--clear", folder), check=True, timeout=INSTALL_S)
    made = tmp_path_factory.mktemp("wheel")
    pip(folder, "wheel", "--quiet", "--retries", "1", "--no-deps", "--wheel-dir", made, ROOT)
    (wheel,) = made.iterdir()
    if not installed.exists():
        pip(folder, "install", "--quiet", "--retries", "1", wheel)
        installed.touch()
    pip(folder, "install", "--quiet", "--no-deps", "--force-reinstall", wheel)
    return folder / "bin"


@pytest.fixture(scope="session")
def lab(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the second wheel, beside that environment: commands find it where they are told to."""
    made, folder = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("lab")
    pip(base.parent, "wheel", "--quiet", "--retries", "1", "--no-deps", "--wheel-dir", made, ROOT / "lab")
    (wheel,) = made.iterdir()
    pip(base.parent, "install", "--quiet", "--no-deps", "--target", folder, wheel, "cmaes", "grpcio")
    return folder


def called(
    base: Path, folder: Path, *words: str, lab: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """A command's end, in a folder with a configuration of each extra's; no Envoy is on the PATH."""
    (folder / "endpoints.yaml").write_text("endpoints: [{address: '192.0.2.1:8000'}]")
    (folder / "tokenizer.json").write_text("{}")
    for name, text in {
        "plain": f"{LISTEN}}}",
        "tls": f"{LISTEN}, tls: {{self_signed: true}}}}",
        "kubernetes": f"{LISTEN}}}\npool: {{kubernetes: {{service: engines}}}}",
        "tokenizers": f"{LISTEN}}}\ntokens: {{models: {{m: {{source: .}}}}}}",
        "cluster": f"{LISTEN}}}\nnats: {{url: 'nats://127.0.0.1:1'}}\nprefix: {{secret_file: plain.yaml}}",
        "spans": f"{LISTEN}}}\ntracing: true",
        "zstd": f"{LISTEN}}}\nrecords: {{folder: records, compress: zstd}}",
    }.items():
        (folder / f"{name}.yaml").write_text(text)
    return subprocess.run(
        (base / words[0], *words[1:]),
        cwd=folder,
        env={"PATH": str(base), "HOME": str(folder), "PYTHONPATH": str(lab or "")},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@pytest.mark.timeout(2 * INSTALL_S)
@pytest.mark.parametrize(
    ("words", "extra"),
    [
        ("epp up http://127.0.0.1:1", "envoy"),
        ("epp demo", "envoy"),
        ("epp bench all", "envoy"),
        ("epp bench envoy", "envoy"),
        ("epp bench tokens --tokenizer .", "tokenizers"),
        ("epp envoy render --config plain.yaml", "envoy"),
        ("epp lab experiments laar --seeds 1", "laar"),
        ("epp serve --config tls.yaml", "tls"),
        ("epp serve --config cluster.yaml", "cluster"),
        ("epp serve --config kubernetes.yaml", "kubernetes"),
        ("epp serve --config tokenizers.yaml", "tokenizers"),
        ("epp serve --config zstd.yaml", "zstd"),
        ("epp serve --config spans.yaml", "otel"),
        ("epp bench tracing", "otel"),
    ],
)
def test_what_needs_an_extra_names_it_in_one_line(
    base: Path, lab: Path, tmp_path: Path, words: str, extra: str
) -> None:
    done = called(base, tmp_path, *words.split(), lab=lab)
    # The picker's log has times before its lines.
    lines = [line for line in done.stderr.splitlines() if " INFO " not in line and " WARNING " not in line]
    assert (done.returncode, len(lines)) == (2, 1), done.stderr
    assert lines[0].startswith("epp: ")
    package = "gorgo-epp-lab" if extra == "laar" else "gorgo-epp"
    assert f"pip install '{package}[{extra}]'" in lines[0]


def commands(base: Path, lab: Path | None = None) -> list[str]:
    done = subprocess.run(
        (base / "python", "-c", "from epp.cli import COMMANDS\nfor c in COMMANDS: print(*c.words)"),
        env={"PYTHONPATH": str(lab or "")}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


@pytest.mark.timeout(2 * INSTALL_S)
def test_what_needs_none_works(base: Path, lab: Path, tmp_path: Path) -> None:
    assert "envoy render" in commands(base)
    assert "lab sim" in commands(base, lab)
    for words in (
        *(f"{command} --help" for command in commands(base)),
        "--version",
        "config check plain.yaml",
    ):
        done = called(base, tmp_path, "epp", *words.split())
        assert (done.returncode, done.stderr) == (0, ""), words
    for words in (
        *(f"{command} --help" for command in {*commands(base, lab)} - {*commands(base)}),
        "lab compare --list",
        "bench core --rounds 1 --sizes 200 --endpoints 3",
    ):
        done = called(base, tmp_path, "epp", *words.split(), lab=lab)
        assert (done.returncode, done.stderr) == (0, ""), words
    compared = "lab compare --workload demo --seconds 3 --warmup 0 --seeds 1 --policy random,mooncake"
    done = called(base, tmp_path, "epp", *compared.split(), lab=lab)
    # What it tells on the way is one line a policy.
    assert (done.returncode, [line[:13] for line in done.stderr.splitlines()]) == (0, ["demo, seed 1:"] * 2)


@pytest.mark.timeout(2 * INSTALL_S)
def test_what_learns_and_measures_is_named_where_it_is_missing(base: Path, lab: Path, tmp_path: Path) -> None:
    named = called(base, tmp_path, "epp", "--help").stdout
    for words in {*commands(base, lab)} - {*commands(base)}:
        done = called(base, tmp_path, "epp", *words.split())
        lines = done.stderr.splitlines()
        assert (done.returncode, len(lines)) == (2, 1), words
        assert "pip install gorgo-epp-lab" in lines[0]
        assert words in named or words.split()[0] in named


@pytest.mark.timeout(2 * INSTALL_S)
def test_the_picker_serves(base: Path, tmp_path: Path) -> None:
    called(base, tmp_path, "epp", "--version")  # writes the configuration
    ready, command = (
        tmp_path / "ready",
        (base / "epp", "serve", "--config", "plain.yaml", "--ready-file", "ready"),
    )
    with subprocess.Popen(command, cwd=tmp_path, env={"PATH": str(base)}) as picker:
        try:
            while not ready.exists():
                assert picker.poll() is None
                time.sleep(0.05)
            with urllib.request.urlopen(f"http://{json.loads(ready.read_text())['http']}/metrics") as answer:
                assert b"llm_d_epp_info" in answer.read()
        finally:
            picker.terminate()
    assert picker.returncode == 0
