"""What is committed: what `epp up` fills in; one tier in three variants, two tiers, regions as peers.

All but the first lie under `deploy/envoy/`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from epp.config.eds import eds_content
from epp.config.federation import Federation
from epp.config.relays import Relays
from epp.envoy.bootstrap import bootstrap, tree_of
from epp.envoy.prepared import FILE, STAND_INS
from epp.envoy.render import render, render_relay, write
from epp.envoy.settings import EnvoySettings, Variant
from epp.types import Endpoint

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "envoy"
ENDPOINTS = tuple(Endpoint(f"127.0.0.1:{port}") for port in (8001, 8002, 8003))
#: Relative to the folder that Envoy is started in: the repository's.
EDS_PATH = "deploy/envoy/eds.json"

#: Two regions, a relay in each; addresses set aside for documentation.
REGIONAL_ENDPOINTS = (
    Endpoint("192.0.2.11:8000", region="eu-central"),
    Endpoint("192.0.2.12:8000", region="eu-central"),
    Endpoint("198.51.100.11:8000", region="ap-northeast"),
)
RELAYS = Relays(
    regions={"eu-central": "192.0.2.10:8443", "ap-northeast": "198.51.100.10:8443"},
    ca_file="/etc/epp-relay/ca.crt",
    cert_file="/etc/epp-relay/tls.crt",
    key_file="/etc/epp-relay/tls.key",
)
COORDINATES = {"eu-central": (50.1, 8.7), "ap-northeast": (35.7, 139.7)}


def examples() -> dict[str, str]:
    """File name to content; all but what `epp up` fills in lie in `FOLDER`."""
    usual = json.dumps(tree_of(bootstrap(STAND_INS)), indent=1) + "\n"
    found = {"eds.json": eds_content(ENDPOINTS).decode(), str(FILE): usual}
    for variant in Variant:
        eds_path = "" if variant is Variant.ORIGINAL_DST else EDS_PATH
        settings = EnvoySettings(endpoints=ENDPOINTS, variant=variant, eds_path=eds_path)
        found[f"{variant}.yaml"] = render(settings)
    tiers = EnvoySettings(endpoints=REGIONAL_ENDPOINTS, relays=RELAYS)
    found["two-tier/global.yaml"] = render(tiers)
    peers = Federation(region="eu-central", coordinates=COORDINATES)
    own = tuple(endpoint for endpoint in REGIONAL_ENDPOINTS if endpoint.region == peers.region)
    found["regions/eu-central.yaml"] = render(replace(tiers, endpoints=own, federation=peers))
    entry = Federation(coordinates=COORDINATES)
    found["regions/entry.yaml"] = render(replace(tiers, endpoints=(), federation=entry, observe=False))
    for region in RELAYS.regions:
        # Open to all addresses, and to one certificate.
        found[f"two-tier/relay-{region}.yaml"] = render_relay(replace(tiers, listener_host="0.0.0.0"), region)
    return found


def main() -> None:
    """Write them: `python -m epp.envoy.examples`."""
    for name, text in examples().items():
        file = FOLDER / name
        file.parent.mkdir(parents=True, exist_ok=True)
        write(file, text)


if __name__ == "__main__":
    main()
