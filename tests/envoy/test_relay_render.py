"""Two tiers as rendered: what is refused, what both tiers agree on, and that one tier knows nothing of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from epp.cli import main
from epp.config.load import parse_config
from epp.envoy.examples import REGIONAL_ENDPOINTS, RELAYS
from epp.envoy.render import render, render_relay
from epp.envoy.settings import EnvoySettings, Variant
from epp.errors import ConfigError
from epp.types import Endpoint

if TYPE_CHECKING:
    from pathlib import Path

CERTIFICATES = "ca_file: /ca, cert_file: /cert, key_file: /key"


def tree(text: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(text)["static_resources"]
    return found


def cluster(text: str, name: str = "replicas") -> dict[str, Any]:
    return next(c for c in tree(text)["clusters"] if c["name"] == name)


def two_tiers(**changes: Any) -> EnvoySettings:
    values: dict[str, Any] = {"endpoints": REGIONAL_ENDPOINTS, "relays": RELAYS} | changes
    return EnvoySettings(**values)


def ports(addresses: list[dict[str, Any]]) -> list[int]:
    return [entry["socket_address"]["port_value"] for entry in addresses]


def test_both_tiers_agree_on_addresses() -> None:
    for region in RELAYS.regions:
        listener = tree(render_relay(two_tiers(), region))["listeners"][0]
        others = [entry["address"] for entry in listener["additional_addresses"]]
        here = ports([listener["address"], *others])
        localities = cluster(render(two_tiers()))["load_assignment"]["endpoints"]
        there = next(entry for entry in localities if entry["locality"]["region"] == region)["lb_endpoints"]
        assert ports([host["endpoint"]["address"] for host in there]) == here
        assert len(here) == RELAYS.connections


def test_the_global_tier_weighs_relays_by_their_endpoints() -> None:
    weights = {
        entry["locality"]["region"]: {int(host["load_balancing_weight"]) for host in entry["lb_endpoints"]}
        for entry in cluster(render(two_tiers()))["load_assignment"]["endpoints"]
    }
    assert weights == {"eu-central": {2}, "ap-northeast": {1}}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"variant": Variant.ORIGINAL_DST}, "original-dst"),
        ({"endpoints": (Endpoint("10.0.0.1:8000", region="atlantis"),)}, "atlantis"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        render(two_tiers(**changes))


@pytest.mark.parametrize(
    "section",
    [
        "regions: {eu: 10.0.0.1:8443}",  # no certificates
        f"regions: {{eu: '10.0.0.1:65534'}}, connections: 4, {CERTIFICATES}",
        f"regions: {{eu: '10.0.0.1:8443', us: '10.0.0.1:8450'}}, connections: 8, {CERTIFICATES}",  # one port is both's
    ],
)
def test_wrong_sections_are_refused(section: str) -> None:
    with pytest.raises(ConfigError, match="relays"):
        parse_config(f"relays: {{{section}}}", "epp.yaml")


def test_the_command_renders_both_tiers_from_one_configuration(tmp_path: Path) -> None:
    config = tmp_path / "epp.yaml"
    config.write_text(
        "pool: {file: endpoints.yaml}\n"
        f"relays: {{regions: {{eu: '10.0.0.1:8443'}}, connections: 2, {CERTIFICATES}}}\n"
    )
    (tmp_path / "endpoints.yaml").write_text("endpoints: [{address: '10.0.0.2:8000', region: eu}]\n")
    texts = {}
    for tier in ("global", "relay:eu"):
        out = tmp_path / tier.replace(":", "-")
        assert main(["envoy", "render", "--config", str(config), "--tier", tier, "--out", str(out)]) == 0
        texts[tier] = out.read_text()
    assert cluster(texts["relay:eu"])["load_assignment"]["endpoints"][0]["lb_endpoints"]
    assert "10.0.0.2" not in texts["global"]
    for tier in ("regional", "relay:", "relay:us"):
        assert main(["envoy", "render", "--config", str(config), "--tier", tier]) == 2
