"""The usual configuration, rendered beforehand: `epp up` fills it in.

The library of Envoy's API takes more than a second of CPU to render with, and 40 MB with what it brings. So
`up.json` comes with the package, and `make envoy-config` writes it. Addresses, ports and files are stand-ins
there. What a pool may do without - certificates, paths before engines - is in it, and taken out.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from epp.config.address import is_ip
from epp.envoy.settings import SYSTEM_CA_FILE, EnvoySettings
from epp.types import Endpoint

FILE = Path(__file__).with_name("up.json")
_IP = "192.0.2.1"
#: Field of the settings -> what no settings have.
_FILLED_IN: dict[str, Any] = {
    "listener_host": "192.0.2.2",
    "listener_port": 100_001,
    "admin_port": 100_002,
    "picker_host": "192.0.2.3",
    "picker_port": 100_003,
    "first_token_host": "192.0.2.4",
    "first_token_port": 100_004,
    "eds_path": "/stand-in/eds.json",
    "upstream_ca_file": "/stand-in/ca.pem",
}
STAND_INS = EnvoySettings(
    endpoints=(Endpoint("engine.invalid:1", tls=True, base_path="/"), Endpoint(f"{_IP}:1", tls=True)),
    endpoint_header=True,
    **_FILLED_IN,
)
"""The settings of `FILE`."""


def prepared(settings: EnvoySettings) -> dict[str, Any] | None:
    """Fill in the configuration; None where the settings ask for another one."""
    given = {name: getattr(settings, name) for name in (*_FILLED_IN, "endpoints", "upstream_insecure")}
    reached = is_ip(settings.picker_host) and is_ip(settings.first_token_host) and settings.first_token_port
    if settings != replace(STAND_INS, **given) or not (reached and settings.eds_path):
        return None
    given["upstream_ca_file"] = settings.upstream_ca_file or SYSTEM_CA_FILE
    text = FILE.read_text()
    for name, stand_in in _FILLED_IN.items():
        text = text.replace(json.dumps(stand_in), json.dumps(given[name]))
    tree: dict[str, Any] = json.loads(text)
    replicas = tree["static_resources"]["clusters"][0]
    sockets = {each["name"]: json.dumps(each) for each in replicas["transport_socket_matches"]}
    tls = [
        sockets.get(f"tls-{name}") or sockets[f"tls-ip:{_IP}"].replace(_IP, name.removeprefix("ip:"))
        for name in settings.socket_names
    ]
    ways = replicas["transport_socket_matches"] = [*map(json.loads, (*tls, sockets["plaintext"]))]
    for way in ways[:-1] if settings.upstream_insecure else ():
        context = way["transport_socket"]["typed_config"]
        del context["common_tls_context"]["validation_context"]
        context.pop("auto_sni_san_validation", None)
    if not settings.rewrites_paths:
        (options,) = replicas["typed_extension_protocol_options"].values()
        del options["http_filters"][:2]  # those of paths
    return tree
