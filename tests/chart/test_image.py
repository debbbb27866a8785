"""The Dockerfile, as far as it can be judged without building: base, user, entry point, pinned versions."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text()
LINES = [
    line.strip()
    for line in re.sub(r"\\\n", " ", TEXT).splitlines()
    if line.strip() and not line.startswith("#")
]
STAGES = "\n".join(LINES).split("\nFROM ")[1:]


def pinned() -> dict[str, str]:
    lines = (ROOT / "deploy" / "image" / "constraints.txt").read_text().splitlines()
    found = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    return {name.lower().replace("_", "-"): version for name, version in found.items()}


def test_the_last_stage_builds_nothing_and_is_not_root() -> None:
    last = STAGES[1].splitlines()
    assert not [line for line in last if line.startswith(("RUN", "ADD", "ARG"))]
    assert "USER 65532:65532" in last
    assert last[-1] == 'ENTRYPOINT ["epp", "serve"]'
    assert "EXPOSE 9002 9003 9090" in last


def test_kserve_s_command_line_starts_the_picker() -> None:
    assert "COPY --chmod=755 deploy/image/app-epp /app/epp" in STAGES[1]
    # config/llmisvcconfig/config-llm-scheduler.yaml of kserve/kserve at aaac4e2, without TLS; a configuration stops it
    words = ["--pool-name", "a-inference-pool", "--pool-namespace", "a", "--zap-encoder", "json", "--grpc-port", "9002",
             "--grpc-health-port", "9003", "", "", "", "", "--config-text", "kind: Other"]  # fmt: skip
    script = ROOT / "deploy" / "image" / "app-epp"
    found = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith("epp: --config-text: ")


def test_what_is_installed_is_pinned_and_comes_as_wheels() -> None:
    installs = re.findall(r"pip(?: --python \S+)? install [^&]*", STAGES[0])
    assert len(installs) == 2
    assert all("--only-binary :all:" in each and "--constraint constraints.txt" in each for each in installs)


def test_every_dependency_has_a_pin_that_it_allows() -> None:
    project, lab = (
        tomllib.loads((ROOT / top / "pyproject.toml").read_text())["project"] for top in ("", "lab")
    )
    extras = project["optional-dependencies"]
    wanted = [
        *project["dependencies"],
        *(each for each in lab["dependencies"] if not each.startswith("gorgo-epp")),
        *(
            each
            for name in ("envoy", "kubernetes", "otel", "zstd", "tls", "tokenizers")
            for each in extras[name]
        ),
    ]
    for text in wanted:
        requirement = Requirement(text)
        name = requirement.name.lower().replace("_", "-")
        assert name in pinned(), f"{name}: run `make image-constraints`"
        assert pinned()[name] in requirement.specifier, name
