"""Token counts: the estimate from bytes, with a prior per model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.prompt.types import ParsedRequest

DEFAULT_BYTES_PER_TOKEN = 4.0


class EstimateCounter:
    """Bytes divided by bytes per token.

    Args:
        bytes_per_token: prior per model name.
    """

    name = "estimate"

    def __init__(self, bytes_per_token: Mapping[str, float] | None = None) -> None:
        self._bytes_per_token = dict(bytes_per_token or {})

    def count(self, request: ParsedRequest) -> int:
        """Estimated prompt tokens, at least 1 for a prompt that is not empty."""
        size = len(request.canonical)
        return (
            max(1, round(size / self._bytes_per_token.get(request.model, DEFAULT_BYTES_PER_TOKEN)))
            if size
            else 0
        )
