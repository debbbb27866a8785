"""`epp envoy render`: the Envoy configuration that fits a picker's configuration."""

from __future__ import annotations

import math
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from epp.config.address import UNIX, is_ip, reachable, split_address
from epp.config.eds import eds_content
from epp.config.load import salvage_files
from epp.envoy.render import render, render_relay, write
from epp.envoy.settings import MESSAGE_TIMEOUT_MS, EnvoySettings, TlsFiles, Variant
from epp.errors import ConfigError, gather, raise_all
from epp.policies.registry import create
from epp.types import answers

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable

    from epp.config.schema import Config
    from epp.types import Endpoint

GLOBAL, RELAY = "global", "relay:"
"""Values of ``--tier``; a region follows the second."""

_FLAGS: dict[str, tuple[str, Callable[[str], object] | None, str]] = {
    "admin_port": ("--admin-port", int, "port of Envoy's admin interface (default: 9901)"),
    "upstream_ca_file": ("--upstream-ca", str, "who signs endpoints' certificates (default: scrape.ca_file)"),
    "health_check_path": ("--health-check", str, "check endpoints actively, a path, e.g. /health"),
    "fail_closed": (
        "--fail-closed",
        None,
        "answer 503 to requests without a decision, so while the picker is dead",
    ),
    "access_log": ("--access-log", None, "one JSON line a request on stdout"),
    "upstream_idle_timeout_s": (
        "--upstream-idle-timeout",
        float,
        (
            "close connections to endpoints that were idle so many seconds; keep it below the engine's own"
            " keep-alive, and raise both where engines are far (default: 4)"
        ),
    ),
    "preconnect_ratio": (
        "--preconnect-ratio",
        float,
        "connections to an endpoint held ready per request in flight, 1 to 3 (default: 1.5)",
    ),
    "max_heap_bytes": (
        "--max-heap-bytes",
        int,
        "memory at which Envoy sheds load; below its limit (default: 4 GiB)",
    ),
    "strip_accept_encoding": (
        "--strip-accept-encoding",
        None,
        "ask engines for answers that are not compressed, so that their usage can be read",
    ),
}
"""Field of `EnvoySettings` -> the flag that sets it, its type (none for a switch) and help."""

#: What Envoy waits for the picker beside the time in which a tokenizer may count.
_BESIDE_COUNT_MS = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    add = parser.add_argument
    add("--config", required=True, type=Path, help="the picker's configuration, e.g. epp.yaml")
    add(
        "--variant",
        choices=[str(variant) for variant in Variant],
        default=str(Variant.STANDALONE),
        metavar="VARIANT",
        help=f"one of {', '.join(Variant)} (default: %(default)s)",
    )
    _add_places(parser.add_mutually_exclusive_group())
    add("--out", type=Path, help="file to write (default: standard output)")
    add("--listen", help="host:port for clients (default: 127.0.0.1:8080)")
    add("--picker", help="host:port of the picker as Envoy reaches it (default: from the config)")
    add("--picker-ca", default="", help="who signs the picker's certificate, when it uses TLS")
    add("--picker-cert", default="", help="Envoy's own certificate, where the picker asks for one (mTLS)")
    add("--picker-key", default="", help="its private key")
    for field, (flag, kind, told) in _FLAGS.items():
        if kind is None:
            add(flag, dest=field, action="store_true", help=told)
        else:
            add(flag, dest=field, type=kind, metavar="VALUE", help=told)
    add(
        "--first-token",
        metavar="ADDRESS",
        help="host:port or unix:/path of the picker's listener for first tokens, 0 for none"
        " (default: from the config)",
    )
    add(
        "--fallback-picker",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="host:port of another picker of the pool, asked while the first is away; may be repeated. All"
        " share by nats.url, and with TLS their certificates carry the first one's name",
    )
    add("--no-observe", action="store_true", help="report nothing to the picker about how requests went")
    add(
        "--eds",
        type=Path,
        help="keep the endpoints in this file, which Envoy follows without a restart; written too"
        " (default: pool.eds_file of the config, which the picker writes)",
    )
    add(
        "--envoy-version",
        metavar="1.N",
        help="oldest Envoy that must take the configuration; docs/envoy-versions.md says what is left out",
    )
    add("--eds-only", action="store_true", help="with --eds: rewrite only the endpoints file")


def _add_places(group: argparse._MutuallyExclusiveGroup) -> None:
    """Flags of which Envoy it is, where there are several."""
    add = group.add_argument
    add(
        "--tier",
        default=GLOBAL,
        metavar="TIER",
        help="where the configuration has relays: 'global', the Envoy beside the picker, or 'relay:REGION'"
        " (default: %(default)s)",
    )
    add(
        "--region",
        default="",
        metavar="NAME",
        help="where regions are peers: the Envoy of this one (default: federation.region of the config)",
    )
    add(
        "--entry",
        action="store_true",
        help="where regions are peers: the Envoy before them all; regions are tried by round trip from this"
        " machine where a request does not say from where it comes",
    )


def run(arguments: argparse.Namespace) -> int:
    """Render and write.

    Raises:
        ConfigError: naming the file, the key and the fix.
    """
    try:
        settings = settings_from_arguments(arguments)
    except ConfigError as error:
        if error.key in _FLAGS:
            raise ConfigError("<arguments>", _FLAGS[error.key][0], error.problem, error.fix) from error
        raise
    if arguments.eds_only and not arguments.eds:
        raise ConfigError("<arguments>", "--eds-only", "needs --eds FILE")
    if arguments.tier != GLOBAL and not arguments.tier.startswith(RELAY):
        raise ConfigError(
            "<arguments>", "--tier", f"{arguments.tier!r} is no tier", "global, or relay:REGION"
        )
    endpoints, order = settings.endpoints, list[str]()
    if arguments.entry and settings.relays:
        from epp.envoy.entry import entry_eds, measured_order  # noqa: PLC0415  # Envoy's API takes a second

        order = measured_order(settings.relays.regions)
        print(f"epp: regions by round trip from here: {', '.join(order)}", file=sys.stderr)
    if arguments.tier == GLOBAL:
        text = render(settings, order)
    else:
        region = arguments.tier.removeprefix(RELAY)
        text = render_relay(settings, region)
        endpoints = tuple(endpoint for endpoint in endpoints if endpoint.region == region)
    if arguments.eds:
        eds = entry_eds(settings, order) if order else eds_content(endpoints, settings.forwards.values())
        _write("--eds", arguments.eds, eds.decode())
    elif settings.eds_path and not Path(settings.eds_path).exists():
        print(f"epp: start the picker before Envoy: it writes {settings.eds_path}", file=sys.stderr)
    if arguments.eds_only:
        return 0
    if arguments.out:
        _write("--out", arguments.out, text)
    else:
        sys.stdout.write(text)
    return 0


def _write(flag: str, file: Path, text: str) -> None:
    try:
        write(file, text)
    except OSError as error:
        why = f"{file} cannot be written: {error.strerror}"
        raise ConfigError("<arguments>", flag, why, "name a file in a folder that is there") from error


def settings_from_arguments(arguments: argparse.Namespace) -> EnvoySettings:
    """The picker's configuration, its pool and the flags, in this order.

    Raises:
        ConfigError: naming the file, the key and the fix.
    """
    settings = _configured(arguments.config, arguments.variant, arguments.region, entry=arguments.entry)
    changes: dict[str, Any] = {
        "variant": Variant(arguments.variant),
        "observe": not (arguments.no_observe or arguments.entry),
        "picker_tls": _towards_picker(settings.picker_tls, arguments),
        "fallback_pickers": tuple(_address("--fallback-picker", each) for each in arguments.fallback_picker),
        "first_token_tls": _towards_picker(settings.first_token_tls, arguments),
    }
    changes |= {field: value for field in _FLAGS if (value := getattr(arguments, field)) is not None}
    if arguments.eds:
        changes["eds_path"] = str(arguments.eds.absolute())
    if arguments.listen:
        changes["listener_host"], changes["listener_port"] = listener_address(arguments.listen)
    if arguments.picker:
        changes["picker_host"], changes["picker_port"] = _address("--picker", arguments.picker)
        # A picker that is elsewhere listens for first tokens there, too.
        changes["first_token_host"] = ""
    if arguments.first_token == "0":  # noqa: S105 - a token of an answer
        changes |= {"first_token_port": 0, "first_token_path": ""}
    elif arguments.first_token and arguments.first_token.startswith(UNIX):
        changes["first_token_path"] = arguments.first_token.removeprefix(UNIX)
    elif arguments.first_token:
        host, port = _address("--first-token", arguments.first_token)
        changes |= {"first_token_host": host, "first_token_port": port, "first_token_path": ""}
    if arguments.envoy_version:
        changes["envoy_version"] = _version(arguments.envoy_version)
    return replace(settings, **changes)


def listener_address(text: str, flag: str = "--listen") -> tuple[str, int]:
    """Read where to listen: host and port.

    Raises:
        ConfigError: Envoy cannot listen there.
    """
    host, port = _address(flag, text)
    if not is_ip(host):
        problem = f"Envoy listens on addresses, not on names such as {host!r}"
        raise ConfigError("<arguments>", flag, problem, "e.g. 127.0.0.1:8080")
    return host, port


def _configured(config_file: Path, variant: str, region: str, *, entry: bool) -> EnvoySettings:
    """What the picker's configuration and its pool say; the entry has none.

    Raises:
        ConfigError: naming the file, the key and the fix.
    """
    config, pool, errors = salvage_files(config_file, _read, os.environ, pool=not entry)
    with gather(errors):
        _check_renderable(config, variant, str(config_file))
    raise_all(errors)
    base = config_file.resolve().parent
    settings = settings_from_config(config, (spec.endpoint() for spec in pool.values()), str(config_file))
    if config.scrape.ca_file:
        settings = replace(settings, upstream_ca_file=str(base / config.scrape.ca_file))
    if entry or region:
        peers = msgspec.structs.replace(config.federation, region=region)
        settings = replace(settings, federation=peers)
    two_tiers = config.relays.regions and not settings.federation
    if variant == Variant.ORIGINAL_DST or entry or two_tiers or not config.pool.eds_file:
        return settings
    # As `epp serve` has it.
    return replace(settings, eds_path=str(base / config.pool.eds_file))


def _check_renderable(config: Config, variant: str, source: str) -> None:
    if config.pool.kubernetes is not None:
        raise ConfigError(
            source, "pool.kubernetes", "an Envoy cannot be rendered for endpoints of a cluster",
            "the Helm chart has one, standalone.enabled; or list endpoints in pool.file",
        )  # fmt: skip
    if config.listen.tls is not None and config.listen.tls.self_signed:
        problem = "Envoy verifies the picker, and nobody knows this certificate"
        fix = "cert_file and key_file; or no tls on loopback"
        raise ConfigError(source, "listen.tls.self_signed", problem, fix)
    count = config.policy.fallbacks
    if variant == Variant.ORIGINAL_DST and count:
        problem = f"{variant} takes a single endpoint, and answers 503 where {count} more stand behind it"
        raise ConfigError(source, "policy.fallbacks", problem, "policy: {fallbacks: 0}")


def _version(text: str) -> tuple[int, int]:
    found = re.match(r"([0-9]+)\.([0-9]+)(\.|$)", text)
    if found is None:
        raise ConfigError("<arguments>", "--envoy-version", f"{text!r} is not a version", "e.g. 1.36")
    return int(found[1]), int(found[2])


def settings_from_config(
    config: Config, endpoints: Iterable[Endpoint], source: str = "<configuration>"
) -> EnvoySettings:
    """What the picker's own configuration says about the Envoy in front of it.

    A wildcard listener is reached over loopback. Envoy waits longer where a tokenizer may count longer: a
    decision that comes too late is lost. With TLS on the gRPC side the picker's certificate is trusted as its
    own authority, which is right for a self-signed one. Endpoints that answer no requests by the policy are
    left out.

    Args:
        config: the configuration.
        endpoints: of its pool.
        source: file that it is from, for the error.

    Raises:
        ConfigError: the policy or a parameter of it is unknown or refused.
    """
    host, port = split_address(config.listen.grpc)
    tls, first_token, tls_there = config.listen.tls, config.listen.first_token, config.listen.first_token_tls
    by_socket = first_token.startswith(UNIX)
    policy = create(config.policy.name, config.policy.params, source=source)
    there, first_token_port = split_address(first_token) if first_token and not by_socket else ("", 0)
    return EnvoySettings(
        endpoints=tuple(endpoint for endpoint in endpoints if answers(policy.roles(endpoint))),
        message_timeout_ms=max(MESSAGE_TIMEOUT_MS, math.ceil(config.tokens.budget_ms) + _BESIDE_COUNT_MS),
        queue_wait_s=config.queue.longest_s,
        queue_requests=config.queue.max_requests,
        stall_limit_s=config.listen.stall_limit_s,
        picker_host=reachable(host),
        picker_port=port,
        picker_tls=TlsFiles(ca_file=tls.cert_file) if tls else None,
        upstream_ca_file=config.scrape.ca_file,
        upstream_insecure=config.scrape.insecure,
        max_body_bytes=config.request.max_body_bytes,
        open_paths=tuple(config.request.open_paths),
        served_model_header=config.capability.tell_model,
        endpoint_header=config.request.tell_endpoint,
        relays=config.relays if config.relays.regions else None,
        federation=config.federation if config.federation.region else None,
        region_rules=tuple(config.regions),
        first_token_host=reachable(there),
        first_token_port=first_token_port,
        first_token_path=first_token.removeprefix(UNIX) if by_socket else "",
        first_token_tls=TlsFiles(ca_file=tls_there.cert_file) if tls_there else None,
    )


def _towards_picker(tls: TlsFiles | None, arguments: argparse.Namespace) -> TlsFiles | None:
    if tls is None:
        return None
    return replace(
        tls,
        ca_file=arguments.picker_ca or tls.ca_file,
        cert_file=arguments.picker_cert,
        key_file=arguments.picker_key,
    )


def _address(flag: str, text: str) -> tuple[str, int]:
    try:
        return split_address(text)
    except ValueError as error:
        raise ConfigError("<arguments>", flag, str(error), "e.g. 127.0.0.1:8080") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(str(path), "", str(error)) from error
