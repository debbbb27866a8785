from __future__ import annotations

import pytest

from tests.kit.envoy import require_envoy


@pytest.fixture(autouse=True)
def _envoy() -> None:
    require_envoy()
