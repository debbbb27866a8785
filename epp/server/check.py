"""All errors of a configuration that cannot be served: its values and the files it names.

Runs only once a start has failed: a start ends at its first error, and after it others may wait.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from epp.config.capability import parse_capability
from epp.config.load import check_weights, parse_weights, stated
from epp.config.plan import parse_plan
from epp.config.pool import parse_pool
from epp.errors import ConfigError, gather
from epp.policies.registry import POLICIES, create
from epp.records.model_files import parse_reward_model
from epp.schedule.weights import effective_bounds
from epp.server.cluster import require_library
from epp.server.files import read_file
from epp.server.learned import shadows
from epp.server.process import hash_secret
from epp.server.tls import server_context
from epp.server.tokenizers import load_models

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from epp.config.schema import Config


def all_errors(config: Config, base: Path, source: str, found: Sequence[ConfigError]) -> list[ConfigError]:
    """Find all errors that a start with this configuration would come to.

    Args:
        config: what can be used of the configuration.
        base: folder that its paths are relative to.
        source: its name, for errors.
        found: errors so far. What depends on a key that they name is not checked.
    """
    checks = _Checks(config, base, source)
    if config.prefix.secret_file:
        checks.run(hash_secret, config, base, source)
    if stated(found, "policy", "name"):
        checks.policy()
    checks.run(shadows, config.shadow, source)
    checks.listeners()
    checks.run(load_models, config.tokens, base, source)
    checks.files()
    if stated(found, "pool", "file", "kubernetes"):
        checks.pool()
    # What has ended the start is found again.
    again = set(map(str, checks.errors))
    before = [error for error in found if str(error) not in again]
    return sorted([*before, *checks.errors], key=lambda error: error.source != source)


class _Checks:
    """Independent checks, whose errors are gathered."""

    def __init__(self, config: Config, base: Path, source: str) -> None:
        self._config, self._base, self._source = config, base, source
        self.errors: list[ConfigError] = []

    def run(self, check: Callable[..., object], *arguments: object) -> None:
        with gather(self.errors):
            check(*arguments)

    def policy(self) -> None:
        """Check the policy, its weights and the files that hold some."""
        config, section = self._config, self._config.policy
        self.run(partial(create, source=self._source), section.name, section.params)
        if section.name not in POLICIES:
            return
        # Without parameters, so that an error among them hides none of the weights.
        specs = create(section.name).weight_specs
        bounds = effective_bounds(specs, section.bounds, self._source, self.errors)
        self.run(check_weights, section.weights, self._source, "policy.weights", bounds)
        for file, parse in ((config.weights_file, parse_plan), (config.overrides_file, parse_weights)):
            self._file(file, parse, policy=section.name, bounds=bounds)

    def listeners(self) -> None:
        """Check certificates."""
        listen = self._config.listen
        for key in ("tls", "http_tls", "first_token_tls"):
            self.run(server_context, getattr(listen, key), self._base, self._source, f"listen.{key}")

    def files(self) -> None:
        """Watched files that stand for themselves."""
        self._file(self._config.policy.model_file, parse_reward_model)
        self._file(self._config.capability.file, parse_capability)

    def pool(self) -> None:
        """Check where endpoints come from."""
        if self._config.pool.kubernetes is not None:
            self.run(require_library, self._source)
            return
        path = self._base / self._config.pool.file
        with gather(self.errors):
            parse_pool(self._read(path), str(path))

    def _file(self, name: str, parse: Callable[..., object], **arguments: object) -> None:
        """Check a file that may be missing."""
        path = self._base / name
        with gather(self.errors):
            if name and (text := self._read(path)) is not None:
                parse(text, str(path), **arguments)

    def _read(self, path: Path) -> bytes | None:
        try:
            return read_file(path)
        except OSError as error:
            raise ConfigError(str(path), "", str(error)) from error
