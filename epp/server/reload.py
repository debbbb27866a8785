"""A changed `epp.yaml` in a running picker: what can be applied is, what needs a restart is named."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import msgspec

from epp.config.load import parse_config
from epp.config.schema import Config
from epp.config.section import Section
from epp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from epp.request.director import Director
    from epp.schedule.admission import AdmissionController
    from epp.schedule.scheduler import Scheduler

log = logging.getLogger(__name__)

#: Keys, and sections with all their keys, that change in a running picker.
LIVE = (
    "capability.tell_model",
    "drain_accept_s",
    "drain_s",
    "policy.fallbacks",
    "policy.tolerance",
    "policy.weights",
    "pool.warmup_s",
    "protocol",
    "regions",
    "request.inject_usage",
    "request.tenant_header",
    "saturation",
)
#: A picker that is down binds nobody: then the rules are those that Envoy was started with.
_STALE_ENVOYS = "regions have changed: render this region's Envoy and the entry again, and start them anew"


class Reload:
    """Takes new contents of the configuration file.

    Args:
        config: in force.
        source: name of the file, for errors and the log.
        scheduler: takes weights and the settings of its choice.
        director: takes how requests are read and answered.
        admission: takes the thresholds of saturation.

    Attributes:
        config: in force: as started, but for the keys of `LIVE`.
    """

    def __init__(
        self,
        config: Config,
        source: str,
        scheduler: Scheduler,
        director: Director,
        admission: AdmissionController,
    ) -> None:
        self.config, self._source = config, source
        self._scheduler, self._director, self._admission = scheduler, director, admission
        self._seen: Config | None = None

    def parse(self, text: bytes | None) -> Config:
        """Check a content, None for a file that is gone.

        Raises:
            ConfigError: naming the file, the key and the fix of each error.
        """
        if text is None:
            raise ConfigError(self._source, "", "the file is gone")
        found = parse_config(text, self._source, os.environ)
        self._scheduler.weights.check_configured(found.policy.weights, self._source)
        return found

    def apply(self, found: Config) -> None:
        """Put a content in force; the first is the one that the picker has started with."""
        before, self._seen = self._seen or found, found
        for key, value in changed(before, found):
            if key.startswith(LIVE):
                self.config = _with(self.config, key, value)
                log.info("%s: %s is %s from now on", self._source, key, value)
                if key == "regions" and self.config.federation.region:
                    log.warning("%s: %s", self._source, _STALE_ENVOYS)
            else:
                log.warning("%s: %s has changed, which takes effect at a restart", self._source, key)
        if before is not found:
            self._scheduler.configure(self.config)
            self._director.configure(self.config)
            self._admission.settings = self.config.saturation


def changed(before: Config, after: Config) -> Iterator[tuple[str, Any]]:
    """List the dotted keys that differ, with their new values; sections within sections are values."""
    for name in Config.__struct_fields__:
        old, new = getattr(before, name), getattr(after, name)
        if old == new:
            continue
        if type(old) is type(new) and isinstance(new, Section):
            for key in new.__struct_fields__:
                if getattr(old, key) != getattr(new, key):
                    yield f"{name}.{key}", getattr(new, key)
        else:
            yield name, new


def _with(config: Config, key: str, value: Any) -> Config:
    section, _, name = key.rpartition(".")
    if section:
        value = msgspec.structs.replace(getattr(config, section), **{name: value})
    return msgspec.structs.replace(config, **{section or name: value})
