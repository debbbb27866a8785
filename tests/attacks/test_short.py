"""Each attack for a moment beside peers that behave, on one picker: all are served, memory stays in its bounds.

No time is judged here, for the machine may be busy: times are printed. `python -m tests.attacks` judges them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.attacks.__main__ import header, line, memory_problem
from tests.attacks.floods import FLOODS
from tests.attacks.rig import alone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.attacks.rig import Rig


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with alone() as found:
        yield found


@pytest.mark.parametrize("name", FLOODS)
def test_peers_that_behave_are_served(rig: Rig, capsys: pytest.CaptureFixture[str], name: str) -> None:
    row = rig.run(name, seconds=0.8, connections=8, slow_ms=5000, quiet_s=0.2)
    with capsys.disabled():
        print(f"\n{header(row)}" if name == next(iter(FLOODS)) else "", line(row), sep="\n")
    assert not row.failures
    assert not memory_problem(row)
    assert not row.cut_short
    assert row.tally["made"] >= 8, "nothing was attacked"
