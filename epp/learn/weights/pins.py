"""The operator's file: reading it, changing it, and what to do where it cannot be written.

Owns its form. In Kubernetes the file is a mounted ConfigMap and read-only: then the command that changes the
ConfigMap is printed instead.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import yaml

from epp.config.load import check_weights
from epp.errors import ConfigError, EppError
from epp.learn.sidecar.files import Files, exclusive
from epp.learn.tuner.command import read_pins

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from pathlib import Path

    from epp.learn.tuner.setup import Setup

#: A file that is mounted by itself (``subPath``) cannot be renamed over: that is "busy".
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EBUSY)
_NOTE = "# Weights pinned by the operator (`epp weights pin`); they win over the tuner's.\n"


def add_config_map(parser: argparse.ArgumentParser) -> None:
    """Flags that name the ConfigMap behind a read-only file."""
    parser.add_argument(
        "--config-map",
        default="gorgo-epp-overrides",
        help="ConfigMap behind a file that is read-only here (%(default)s: of a release gorgo-epp)",
    )
    parser.add_argument("--namespace", default="", help="its namespace (kubectl's own)")


def change(
    setup: Setup, set_to: Mapping[str, float], drop: tuple[str, ...] | None, arguments: argparse.Namespace
) -> int:
    """Pin and unpin.

    Args:
        setup: the files.
        set_to: weights to pin.
        drop: weights to unpin; None for all, whatever the file says, or however it is broken.
        arguments: of `add_config_map`.

    Returns:
        0 when it is done, 3 when it has to be done by the command that was printed.

    Raises:
        ConfigError: no such file is configured, an unknown weight, or a value out of bounds.
        EppError: the file cannot be written.
    """
    if setup.overrides is None:
        raise ConfigError("command line", "overrides_file", "not set", "set it, or give --overrides FILE")
    check_weights(set_to, "command line", "pin", setup.file_bounds)
    check_weights(dict.fromkeys(drop or (), 0.0), "command line", "unpin", _any(setup))
    # Two operators at once: who came second must know what the first has pinned.
    with exclusive(setup.overrides.with_name(f"{setup.overrides.stem}.pins.lock")):
        return _change(setup, setup.overrides, set_to, drop, arguments)


def _change(
    setup: Setup,
    overrides: Path,
    set_to: Mapping[str, float],
    drop: tuple[str, ...] | None,
    arguments: argparse.Namespace,
) -> int:
    before: Mapping[str, float] = {}
    try:
        before = read_pins(setup)
    except ConfigError as error:
        if drop is not None:
            raise EppError(f"{error}; `epp weights unpin --all` begins the file anew") from error
        print(f"{error}; the file is begun anew")
    drop = tuple(before) if drop is None else drop
    for name in (name for name in drop if name not in before):
        print(f"{name} was not pinned")
    after = {name: value for name, value in {**before, **set_to}.items() if name not in drop}
    content = render(setup.policy, after)
    try:
        Files().replace(overrides, content)
    except OSError as error:
        if error.errno not in _READ_ONLY:
            raise EppError(f"{overrides}: {error}") from error
        print(
            f"{overrides} is read-only here: {error.strerror}. Where kubectl may, say (--config-map "
            f"and --namespace name the ConfigMap behind it):\n\n{kubectl(setup, content, arguments)}"
        )
        return 3
    pinned = ", ".join(f"{name}={value:g}" for name, value in sorted(after.items())) or "nothing"
    print(f"pinned: {pinned}; pickers follow within a second")
    return 0


def render(policy: str, pins: Mapping[str, float]) -> bytes:
    """The operator's file."""
    body: str = yaml.safe_dump({"version": 1, "policy": policy, "weights": dict(pins)}, sort_keys=False)
    return (_NOTE + body).encode()


def kubectl(setup: Setup, content: bytes, arguments: argparse.Namespace) -> str:
    """The command that does the same to the ConfigMap."""
    name = setup.overrides.name if setup.overrides is not None else "overrides.yaml"
    namespace = f" --namespace {arguments.namespace}" if arguments.namespace else ""
    # Not applied whole: other keys of the ConfigMap stay.
    command = f"kubectl patch configmap {arguments.config_map}{namespace} --type merge"
    return (
        f"{command} --patch-file /dev/stdin <<'EOF'\n"
        + yaml.safe_dump({"data": {name: content.decode()}}, default_style="|")
        + "EOF"
    )


def _any(setup: Setup) -> dict[str, tuple[float, float]]:
    return dict.fromkeys(setup.file_bounds, (0.0, 0.0))
