"""All errors of a configuration that cannot be served: its values and the files it names.

Runs only once a start has failed: a start ends at its first error, and after it others may wait.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from epp.config.capability import parse_capability
from epp.config.environment import Overlay
from epp.config.load import check_weights, parse_weights, stated
from epp.config.plan import parse_plan
from epp.config.pool import parse_pool
from epp.errors import ConfigError, gather
from epp.feeds.files import read_file
from epp.feeds.kubernetes import require_library
from epp.feeds.learned import shadows
from epp.policies.registry import POLICIES, create
from epp.records.model_files import parse_reward_model
from epp.request.tokenizers import load_models
from epp.schedule.weights import effective_bounds
from epp.server.process import hash_secrets
from epp.server.tls import Certificates

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from epp.config.schema import Config


def all_errors(
    config: Config, base: Path, source: str, found: Sequence[ConfigError], environment: Mapping[str, str]
) -> list[ConfigError]:
    """Find all errors that a start with this configuration would come to.

    Args:
        config: what can be used of the configuration.
        base: folder that its paths are relative to.
        source: its name, for errors.
        found: errors so far. What depends on a key that they name is not checked.
        environment: variables that set keys; errors of such keys name them.
    """
    errors: list[ConfigError] = []

    def run(check: Callable[..., object], *arguments: object) -> None:
        with gather(errors):
            check(*arguments)

    def run_file(name: str, parse: Callable[..., object], **arguments: object) -> None:
        """Check a file that may be missing."""
        path = base / name
        with gather(errors):
            if name and (text := _read(path)) is not None:
                parse(text, str(path), **arguments)

    if config.prefix.secret_file:
        run(hash_secrets, config, base, source)
    policy = config.policy
    if stated(found, "policy", "name"):
        run(partial(create, source=source), policy.name, policy.params)
        if policy.name in POLICIES:
            # Without parameters, so that an error among them hides none of the weights.
            specs = create(policy.name).weight_specs
            bounds = effective_bounds(specs, policy.bounds, source, errors)
            run(check_weights, policy.weights, source, "policy.weights", bounds)
            run_file(config.weights_file, parse_plan, policy=policy.name, bounds=bounds)
            run_file(config.overrides_file, parse_weights, policy=policy.name, bounds=bounds)
    run(shadows, config.shadow, source)
    for key in ("tls", "http_tls", "first_token_tls"):
        run(Certificates(base, source).context, getattr(config.listen, key), f"listen.{key}")
    run(load_models, config.tokens, base, source)
    run_file(policy.model_file, parse_reward_model)
    run_file(config.capability.file, parse_capability)
    if stated(found, "pool", "file", "kubernetes"):
        if config.pool.kubernetes is not None:
            run(require_library, source)
        else:
            path = base / config.pool.file
            run(lambda: parse_pool(_read(path), str(path)))
    overlay = Overlay(environment)
    every = [overlay.named(error) if error.source == source else error for error in (*found, *errors)]
    # What has ended the start is found again.
    once = {str(error): error for error in every}
    return sorted(once.values(), key=lambda error: error.source != source)


def _read(path: Path) -> bytes | None:
    try:
        return read_file(path)
    except OSError as error:
        raise ConfigError(str(path), "", str(error)) from error
