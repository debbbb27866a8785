"""docs/learner.md names every setting with its default."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from epp.learn.reward_model.settings import DataKeys, GateKeys, GuardKeys, LearnerKeys, NetworkKeys

PAGE = (Path(__file__).parents[2] / "docs" / "learner.md").read_text()
SECTIONS: dict[str, type[msgspec.Struct]] = {
    "network": NetworkKeys,
    "data": DataKeys,
    "gate": GateKeys,
    "guard": GuardKeys,
    "": LearnerKeys,
}


@pytest.mark.parametrize("section", SECTIONS, ids=lambda name: name or "top")
def test_every_setting_is_in_the_table(section: str) -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    for field in msgspec.structs.fields(SECTIONS[section]):
        if not section and field.name in SECTIONS:
            continue
        name = f"`{section}.{field.name}`" if section else f"`{field.name}`"
        assert any(name in row for row in rows), name


def test_defaults_in_the_table_are_the_real_ones() -> None:
    chosen = LearnerKeys()
    for row in PAGE.splitlines():
        if not row.startswith("| `") or row.count("|") != 4:
            continue
        names, told = (cell.strip() for cell in row.split("|")[1:3])
        keys = [name.strip().strip("`") for name in names.split(",")]
        values = [value.strip().strip("`") for value in told.split(",")]
        if len(keys) != len(values):
            continue
        for key, value in zip(keys, values, strict=True):
            real: object = chosen
            for part in key.split("."):
                real = getattr(real, part, None)
            if isinstance(real, bool):
                assert value == str(real).lower(), key
            elif isinstance(real, int | float):
                assert float(value) == real, key
