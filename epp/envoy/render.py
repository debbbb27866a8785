"""From settings to the text that Envoy reads: `bootstrap.yaml.j2`, filled in.

Owns the template's values: what depends on the pool, TLS, and the scripts. Writes a file only by atomic
rename, which is also what Envoy watches for.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from epp.config.address import is_ip
from epp.config.eds import (
    PLAINTEXT,
    TLS_MATCH,
    known_as,
    load_assignment,
    peer_name,
    socket_name,
    split,
)
from epp.config.relays import GLOBAL_NAME, RELAY_NAME, STREAM_WINDOW_BYTES, Relays
from epp.envoy.settings import EnvoySettings, TlsFiles, Variant
from epp.errors import ConfigError, EppError

if TYPE_CHECKING:
    from collections.abc import Sequence

STRIPPED_PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/messages",
    "/rerank",
    "/v1/rerank",
    "/v2/rerank",
    "/score",
    "/v1/score",
    "/classify",
    "/v1/classify",
    "/pooling",
    "/v1/pooling",
    "/inference/v1/generate",
    "/generate",
)
"""Paths whose answers carry a usage, as `epp.apis.registry` has them, for `strip_accept_encoding`."""

_FOLDER = Path(__file__).parent
_HEADER = "# Rendered by `epp envoy render` (variant: {variant}). Change the settings, not this file.\n"
#: Where Debian, Alpine and Envoy's images keep the system's certificate authorities.
_SYSTEM_CA_FILE = "/etc/ssl/certs/ca-certificates.crt"
_SOCKETS = "type.googleapis.com/envoy.extensions.transport_sockets"
#: HTTP/2 between the tiers. Windows are granted by the receiver: a stream moves at most one in a round trip.
#: Pings find a dead path where TCP alone would repeat for many minutes; the timeout is more than a round trip
#: and a lost packet's repeat. How many connections there are is chosen by addresses, not by streams.
_LONG_LINKS = {
    "allow_connect": True,
    "max_concurrent_streams": 1000,
    "initial_stream_window_size": STREAM_WINDOW_BYTES,
    "initial_connection_window_size": 4 * STREAM_WINDOW_BYTES,
    "connection_keepalive": {"interval": "2s", "timeout": "4s", "interval_jitter": {"value": 15.0}},
}


def render(settings: EnvoySettings) -> str:
    """The configuration of the Envoy beside the picker, as YAML.

    Raises:
        ConfigError: settings that contradict each other.
    """
    relays = settings.relays
    for endpoint in settings.endpoints if relays else ():
        if relays and endpoint.region not in relays.regions:
            problem = f"there is no relay for {endpoint.region or 'an endpoint without a region'}"
            raise ConfigError("endpoints", endpoint.address, problem, "add it to relays.regions")
    if settings.variant is Variant.ORIGINAL_DST:
        _check_original_dst(settings)
    return _HEADER.format(variant=settings.variant) + _fill(settings, relays, [settings.listener_port])


def render_relay(settings: EnvoySettings, region: str) -> str:
    """The configuration of a region's relay, as YAML.

    Args:
        settings: those of the global Envoy; the relay takes its region's endpoints of them.
        region: its region. It listens on `listener_host`, on the ports that its address is known by.

    Raises:
        ConfigError: no such relay, or settings that contradict each other.
    """
    relays = settings.relays
    if relays is None or region not in relays.regions:
        known = ", ".join(relays.regions if relays else ()) or "there are none"
        raise ConfigError("epp.yaml", "relays.regions", f"no relay for {region!r}", f"one of: {known}")
    endpoints = tuple(endpoint for endpoint in settings.endpoints if endpoint.region == region)
    # The global Envoy reports to the picker.
    local = replace(settings, relays=None, observe=False, endpoints=endpoints)
    ports = [split(address)[1] for address in relays.addresses(region)]
    return _HEADER.format(variant=f"relay of {region}") + _fill(local, relays, ports, region)


def _fill(settings: EnvoySettings, relays: Relays | None, ports: Sequence[int], region: str = "") -> str:
    values: dict[str, Any] = {
        "s": settings,
        "relays": relays,
        "region": region,
        "ports": ports,
        "ready_path": "/epp-relay/ready",
        "destinations": _destinations(settings),
        "endpoint_hosts": [split(endpoint.address)[0] for endpoint in settings.endpoints],
        "assignment": load_assignment(settings.endpoints),
        "socket_matches": _socket_matches(settings),
        "long_links": _LONG_LINKS,
        "first_token_host": settings.first_token_host or settings.picker_host,
        "restore_script": f'local DECISION_NAMESPACE = "epp"\n\n{_script("restore_model.lua")}',
        "observe_script": observe_script(settings),
        "original_dst_tls": None,
    }
    if settings.picker_tls:
        values["picker_tls"] = _upstream_tls(settings.picker_tls, settings.picker_host, "h2")
    if settings.first_token_tls:
        values["first_token_tls"] = _upstream_tls(settings.first_token_tls, values["first_token_host"])
    if tls := next((endpoint for endpoint in settings.endpoints if endpoint.tls), None):
        values["original_dst_tls"] = _upstream_tls(TlsFiles(settings.upstream_ca_file), peer_name(tls))
    if relays:
        values["relay_hosts"] = [split(a)[0] for name in relays.regions for a in relays.addresses(name)]
        sizes = Counter(endpoint.region for endpoint in settings.endpoints if not endpoint.draining)
        values["region_weights"] = {name: max(1, sizes[name]) for name in relays.regions}
        files = TlsFiles(relays.ca_file, relays.cert_file, relays.key_file)
        values["relay_tls"] = (
            _downstream_tls(files, GLOBAL_NAME) if region else _upstream_tls(files, RELAY_NAME, "h2")
        )
    tree = yaml.load(_template().render(values), yaml.CSafeLoader)
    return str(yaml.dump(tree, Dumper=_Dumper, sort_keys=False, width=120))


@cache
def _template() -> Any:
    try:
        import jinja2  # noqa: PLC0415  # of the extra: serving needs none
    except ModuleNotFoundError as error:
        raise EppError("jinja2 is not installed: pip install 'gorgo-epp[envoy]'") from error
    environment = jinja2.Environment(  # noqa: S701  # YAML, and values as JSON
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FileSystemLoader(_FOLDER),
    )
    environment.filters.update(
        j=json.dumps,
        seconds=lambda value: _duration(value * 1000),
        ms=_duration,
        discovery=lambda hosts: "STATIC" if all(map(is_ip, hosts)) else "STRICT_DNS",
        socket_address=lambda address: dict(zip(("address", "port_value"), split(address), strict=True)),
    )
    return environment.get_template("bootstrap.yaml.j2")


def _duration(value_ms: float) -> str:
    whole_s, rest_ms = divmod(round(value_ms), 1000)
    return f"{whole_s}.{rest_ms:03}s" if rest_ms else f"{whole_s}s"


def _check_original_dst(settings: EnvoySettings) -> None:
    if settings.eds_path:
        raise ConfigError("envoy", "eds_path", "original-dst reads no endpoints", "remove it")
    for endpoint in settings.endpoints:
        if not is_ip(split(endpoint.address)[0]):
            problem = "original-dst cannot reach a host name"
            raise ConfigError("endpoints", endpoint.address, problem, "write its address")
    if len({endpoint.tls and peer_name(endpoint) for endpoint in settings.endpoints}) > 1:
        problem = "original-dst has one TLS setting for all endpoints"
        fix = "give all of them the same server_name, or none of them TLS"
        raise ConfigError("endpoints", "tls", problem, fix)


def _destinations(settings: EnvoySettings) -> dict[str, Any]:
    """Match destinations that original-dst may be sent to: the endpoints, and what a pattern allows."""
    texts: list[dict[str, Any]] = [{"exact": known_as(endpoint.address)} for endpoint in settings.endpoints]
    patterns = "|".join(f"(?:{pattern})" for pattern in settings.destination_patterns)
    if patterns or not texts:
        texts.append({"safe_regex": {"regex": patterns or "(?:no endpoint)"}})
    matchers = [{"string_match": text} for text in texts]
    return {"or_match": {"value_matchers": matchers}} if len(matchers) > 1 else matchers[0]


def _socket_matches(settings: EnvoySettings) -> list[dict[str, Any]]:
    """One entry for each way of speaking TLS in the pool, and plaintext for all that names none.

    With an EDS file endpoints may join later: where a CA is configured there is an entry for those verified
    by name, and plaintext is for endpoints that name it.
    """
    names = {socket_name(endpoint) for endpoint in settings.endpoints} - {""}
    if settings.eds_path and settings.upstream_ca_file:
        names.add("name")
    files = TlsFiles(settings.upstream_ca_file)
    matches: list[dict[str, Any]] = [
        {
            "name": f"tls-{name}",
            "match": {TLS_MATCH: name},
            "transport_socket": _upstream_tls(files, name.removeprefix("ip:") if name != "name" else ""),
        }
        for name in sorted(names)
    ]
    if matches or settings.eds_path:
        plain = _socket("raw_buffer", "raw_buffer.v3.RawBuffer", {})
        match = {TLS_MATCH: PLAINTEXT} if settings.eds_path else {}
        matches.append({"name": "plaintext", "match": match, "transport_socket": plain})
    return matches


def _upstream_tls(files: TlsFiles, peer: str, alpn: str = "http/1.1") -> dict[str, Any]:
    """TLS that verifies the peer: by the host's own name when ``peer`` is empty, else by this name or IP."""
    peer = files.server_name or peer
    common = _common_tls(replace(files, ca_file=files.ca_file or _SYSTEM_CA_FILE), peer, [alpn])
    names: dict[str, Any] = {} if is_ip(peer) else {"sni": peer}
    if not peer:
        names = {"auto_host_sni": True, "auto_sni_san_validation": True}
    return _socket("tls", "tls.v3.UpstreamTlsContext", {"common_tls_context": common, **names})


def _downstream_tls(files: TlsFiles, peer: str) -> dict[str, Any]:
    """The relay's certificate; clients need one for the name ``peer``."""
    common = _common_tls(files, peer, ["h2", "http/1.1"])
    context = {"common_tls_context": common, "require_client_certificate": True}
    return _socket("tls", "tls.v3.DownstreamTlsContext", context)


def _common_tls(files: TlsFiles, peer: str, protocols: list[str]) -> dict[str, Any]:
    validation: dict[str, Any] = {"trusted_ca": {"filename": files.ca_file}}
    if peer:
        kind = "IP_ADDRESS" if is_ip(peer) else "DNS"
        validation["match_typed_subject_alt_names"] = [{"san_type": kind, "matcher": {"exact": peer}}]
    common: dict[str, Any] = {"validation_context": validation, "alpn_protocols": protocols}
    if files.cert_file:
        pair = {
            "certificate_chain": {"filename": files.cert_file},
            "private_key": {"filename": files.key_file},
        }
        common["tls_certificates"] = [pair]
    return common


def _socket(name: str, kind: str, content: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": f"envoy.transport_sockets.{name}",
        "typed_config": {"@type": f"{_SOCKETS}.{kind}", **content},
    }


def observe_script(settings: EnvoySettings) -> str:
    """The Lua source that watches responses for the picker, with its parameters in front."""
    parameters = {
        "NAMESPACE": '"epp.observe"',
        "DECISION_NAMESPACE": '"epp"',
        "CLUSTER": '"first-tokens"' if settings.reports_first_tokens else '""',
        "TIMEOUT_MS": "1000",
        "TAIL_BYTES": "2048",  # longest `usage` object that is kept of an answer
    }
    parts = ["observe.lua"]
    if settings.strip_accept_encoding:
        # JSON strings of printable ASCII are Lua strings, too.
        parameters["STRIPPED_PATHS"] = f"{{ {', '.join(map(json.dumps, STRIPPED_PATHS))} }}"
        parts.append("observe_request.lua")
    head = "".join(f"local {name} = {value}\n" for name, value in parameters.items())
    return "\n".join([head, *map(_script, parts)])


def _script(name: str) -> str:
    return (_FOLDER / name).read_text()


def write(path: Path, text: str) -> None:
    """Replace a file atomically, so that no reader ever sees half of it.

    Raises:
        OSError: the folder cannot be written.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes private files; Envoy often runs as another user, and nothing here is secret.
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines, which are scripts, line by line."""

    def ignore_aliases(self, _data: object) -> bool:
        """Write what is used twice twice."""
        return True


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)
