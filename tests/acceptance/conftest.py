"""Stacks that several tests share, because starting one takes seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.acceptance.kit import Stack, serving

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Three replicas, a picker with the default configuration, our own Envoy."""
    with serving(tmp_path_factory.mktemp("stack")) as running:
        yield running
