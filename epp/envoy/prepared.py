"""The usual configuration, rendered beforehand: `epp up` fills it in.

The library of Envoy's API takes more than a second of CPU to render with, and 40 MB with what it brings. So
`up.json` comes with the package, and `make envoy-config` writes it. Addresses, ports and files are stand-ins
there. What a pool may do without - certificates, paths before engines - is in it, and taken out.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from epp.envoy.settings import SYSTEM_CA_FILE, EnvoySettings
from epp.types import Endpoint

FILE = Path(__file__).with_name("up.json")
_IP = "192.0.2.1"
STAND_INS = EnvoySettings(
    endpoints=(Endpoint("engine.invalid:1", tls=True), Endpoint(f"{_IP}:1", tls=True)),
    listener_host="192.0.2.2",
    listener_port=65001,
    admin_port=65002,
    picker_port=65003,
    first_token_port=65004,
    eds_path="/stand-in/eds.json",
    upstream_ca_file="/stand-in/ca.pem",
    endpoint_header=True,
)
"""The settings of `FILE`."""
_FILLED_IN = (
    "listener_host",
    "listener_port",
    "admin_port",
    "picker_port",
    "first_token_port",
    "eds_path",
    "upstream_ca_file",
)


def prepared(settings: EnvoySettings) -> dict[str, Any] | None:
    """Fill in the configuration; None where the settings ask for another one."""
    given = {name: getattr(STAND_INS, name) for name in _FILLED_IN}
    if replace(settings, endpoints=STAND_INS.endpoints, **given) != STAND_INS:
        return None
    named = replace(settings, upstream_ca_file=settings.upstream_ca_file or SYSTEM_CA_FILE)
    table = {_json(value): _json(getattr(named, name)) for name, value in given.items()}
    stand_ins = "|".join(map(re.escape, table))
    text = re.sub(stand_ins, lambda found: table[found[0]], FILE.read_text())
    tree: dict[str, Any] = msgspec.json.decode(text)
    replicas = tree["static_resources"]["clusters"][0]
    sockets = {each["name"]: _json(each) for each in replicas["transport_socket_matches"]}
    ways = [
        sockets.get(f"tls-{name}") or sockets[f"tls-ip:{_IP}"].replace(_IP, name.removeprefix("ip:"))
        for name in settings.socket_names
    ]
    replicas["transport_socket_matches"] = [msgspec.json.decode(way) for way in (*ways, sockets["plaintext"])]
    return tree


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
