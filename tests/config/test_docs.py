from __future__ import annotations

from pathlib import Path

import pytest

from docs.generate_configuration import TARGET, render
from epp.config.load import parse_config
from epp.config.pool import parse_pool

DEPLOY = Path(__file__).parent.parent.parent / "deploy"


def test_the_configuration_reference_is_fresh_and_says_something_of_every_key() -> None:
    assert TARGET.read_text() == render(), "run python -m docs.generate_configuration"
    for line in render().splitlines():
        if line.startswith("| `"):
            assert not line.endswith("|  |"), f"no meaning: {line}"


@pytest.mark.parametrize("path", sorted(DEPLOY.glob("epp*.yaml")), ids=lambda path: path.name)
def test_every_example_loads(path: Path) -> None:
    config = parse_config(path.read_text(), path.name)
    pool = DEPLOY / config.pool.file
    assert parse_pool(pool.read_text(), pool.name)
