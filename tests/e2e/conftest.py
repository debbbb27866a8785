from __future__ import annotations

import os

import pytest

from tests.kit.envoy import require_envoy

# Imported, litellm asks for prices far away, and waits.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"


@pytest.fixture(autouse=True)
def _envoy() -> None:
    require_envoy()
