"""The capability file at run time: its content becomes the table in force; a bad one changes nothing."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from epp.config.capability import chances_of, parse_capability
from epp.errors import ConfigError

if TYPE_CHECKING:
    from epp.server.metrics import Metrics
    from epp.signals.capability import Capability

log = logging.getLogger(__name__)


class CapabilityFeed:
    """Applies contents of the capability file.

    Args:
        table: told of every good content.
        metrics: counted into.
        source: the file's name.
    """

    def __init__(self, table: Capability, metrics: Metrics, source: str) -> None:
        self._table, self._metrics, self._source = table, metrics, source

    def content(self, text: bytes | None) -> None:
        """New content; None for a file that is gone, which withdraws what it said."""
        try:
            chances = {} if text is None else chances_of(parse_capability(text, self._source))
        except ConfigError as error:
            self._metrics.file_failed("capability")
            log.error("%s; the last good table stays in force", error)  # noqa: TRY400
            return
        self._metrics.file_good("capability", there=text is not None)
        self._table.replace(chances)
        if text is None:
            log.warning("no capability file in %s: all models count as equally right", self._source)
            return
        log.info("capability of %d models", len(chances))
