"""Two tiers as rendered: what is refused, what both tiers agree on, and that one tier knows nothing of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from epp.cli import main
from epp.config.load import parse_config
from epp.config.relays import Relays
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


def test_a_relay_knows_the_endpoints_of_its_region_alone() -> None:
    for region in RELAYS.regions:
        [locality] = cluster(render_relay(two_tiers(), region))["load_assignment"]["endpoints"]
        known = {
            host["endpoint"]["address"]["socket_address"]["address"] for host in locality["lb_endpoints"]
        }
        wanted = {e.address.rpartition(":")[0] for e in REGIONAL_ENDPOINTS if e.region == region}
        assert known == wanted


def test_the_global_tier_weighs_relays_by_their_endpoints() -> None:
    weights = {
        entry["locality"]["region"]: {int(host["load_balancing_weight"]) for host in entry["lb_endpoints"]}
        for entry in cluster(render(two_tiers()))["load_assignment"]["endpoints"]
    }
    assert weights == {"eu-central": {2}, "ap-northeast": {1}}


def test_a_relay_asks_for_the_global_tiers_certificate() -> None:
    chain = tree(render_relay(two_tiers(), "eu-central"))["listeners"][0]["filter_chains"][0]
    tls = chain["transport_socket"]["typed_config"]
    names = tls["common_tls_context"]["validation_context"]["match_typed_subject_alt_names"]
    assert tls["require_client_certificate"] is True
    assert [name["matcher"] for name in names] == [{"exact": RELAYS.global_name}]


def test_one_tier_is_as_it_was() -> None:
    text = render(two_tiers(relays=None))
    assert "relay" not in text.lower().replace("x-envoy", "")
    assert "http2_protocol_options" not in cluster(text)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"variant": Variant.FULL_DUPLEX}, "full-duplex"),
        ({"variant": Variant.ORIGINAL_DST}, "original-dst"),
        ({"endpoints": (Endpoint("10.0.0.1:8000", region="atlantis"),)}, "atlantis"),
        ({"endpoints": (Endpoint("10.0.0.1:8000"),)}, "without a region"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        render(two_tiers(**changes))


def test_a_relay_of_no_region_is_refused() -> None:
    with pytest.raises(ConfigError, match="atlantis"):
        render_relay(two_tiers(), "atlantis")
    with pytest.raises(ConfigError, match="there are none"):
        render_relay(two_tiers(relays=None), "eu-central")


@pytest.mark.parametrize(
    "section",
    [
        "regions: {eu: 10.0.0.1:8443}",  # no certificates
        f"regions: {{eu: 10.0.0.1}}, {CERTIFICATES}",
        f"regions: {{eu: '10.0.0.1:65534'}}, connections: 4, {CERTIFICATES}",
        f"regions: {{eu: '10.0.0.1:8443'}}, connections: 0, {CERTIFICATES}",
        f"regions: {{eu: '10.0.0.1:8443', us: '10.0.0.1:8450'}}, connections: 8, {CERTIFICATES}",  # one port is both's
        f"regions: {{eu: '[fd00::1]:8443', us: '[fd00:0::1]:8443'}}, {CERTIFICATES}",
        "congestion_control: a-name-longer-than-kernels-take",
        "compression: zstd",
    ],
)
def test_wrong_sections_are_refused(section: str) -> None:
    with pytest.raises(ConfigError, match="relays"):
        parse_config(f"relays: {{{section}}}", "epp.yaml")


def test_congestion_control_is_asked_of_sockets() -> None:
    relays = Relays(
        regions=RELAYS.regions, ca_file="/ca", cert_file="/c", key_file="/k", congestion_control="bbr"
    )
    settings = two_tiers(relays=relays)
    assert cluster(render(settings))["upstream_bind_config"]["socket_options"][0]["name"] == "13"
    assert tree(render_relay(settings, "eu-central"))["listeners"][0]["socket_options"][0]["name"] == "13"


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


def test_a_relay_s_endpoints_file_holds_its_region_alone(tmp_path: Path) -> None:
    config, eds = tmp_path / "epp.yaml", tmp_path / "eds.yaml"
    regions = "{eu: '10.0.0.1:8443', us: '10.1.0.1:8443'}"
    config.write_text(f"relays: {{regions: {regions}, {CERTIFICATES}}}\n")
    pool = "endpoints: [{address: '10.0.0.2:8000', region: eu}, {address: '10.1.0.2:8000', region: us}]\n"
    (tmp_path / "endpoints.yaml").write_text(pool)
    flags = ["--config", str(config), "--tier", "relay:eu", "--eds", str(eds)]
    for more in (["--out", str(tmp_path / "relay.yaml")], ["--eds-only"]):
        assert main(["envoy", "render", *flags, *more]) == 0
        assert "10.0.0.2" in eds.read_text()
        assert "10.1.0.2" not in eds.read_text()
