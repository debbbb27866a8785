"""The committed configurations are fresh and sound, and the settings are checked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from epp.cli import main
from epp.config.eds import REPLICAS
from epp.config.listen import Listen
from epp.config.schema import Config, PolicySection, QueueSection
from epp.envoy.bootstrap import bootstrap, tree_of
from epp.envoy.clusters import PICKER
from epp.envoy.command import settings_from_config
from epp.envoy.examples import EDS_PATH, ENDPOINTS, FOLDER, examples
from epp.envoy.prepared import prepared
from epp.envoy.process import find_envoy, version_of
from epp.envoy.render import render
from epp.envoy.settings import FULL_FEATURED, EnvoySettings, TlsFiles, Variant
from epp.errors import ConfigError
from epp.types import Endpoint, Role
from tests.kit.certificates import self_signed
from tests.kit.envoy import accepted, require_envoy, require_version

if TYPE_CHECKING:
    from pathlib import Path


COMMITTED = sorted(str(file.relative_to(FOLDER)) for file in FOLDER.rglob("*.yaml"))


def test_committed_configurations_are_fresh() -> None:
    stale = [name for name, text in examples().items() if (FOLDER / name).read_text() != text]
    assert not stale, "run python -m epp.envoy.examples"


@pytest.mark.parametrize(
    ("ca_file", "insecure"), [("", False), ('/folder/a "certificate".pem', False), ("", True)]
)
@pytest.mark.parametrize(
    "endpoints",
    [
        (),
        (Endpoint("10.0.0.1:8000"),),
        (Endpoint("engine.example:1", tls=True), Endpoint("10.0.0.1:8000", base_path="/llm")),
        tuple(Endpoint(f"{host}:1", tls=True) for host in ("10.0.0.1", "[fd00::1]", "engine.example")),
    ],
    ids=len,
)
def test_what_is_filled_in_is_what_would_be_rendered(
    endpoints: tuple[Endpoint, ...], ca_file: str, insecure: bool
) -> None:
    settings = EnvoySettings(
        endpoints=endpoints,
        eds_path="/a folder/eds.json",
        first_token_host="::1",
        endpoint_header=True,
        listener_host="::1",
        listener_port=9901,
        admin_port=0,
        upstream_ca_file=ca_file,
        upstream_insecure=insecure,
    )
    assert prepared(settings) == tree_of(bootstrap(settings))


def test_other_settings_are_rendered() -> None:
    usual = EnvoySettings(endpoints=(), eds_path="e", endpoint_header=True, first_token_host="::1")
    others: list[dict[str, Any]] = [
        {"observe": False},
        {"eds_path": ""},
        {"first_token_port": 0},
        {"picker_host": "picker.example"},
        {"variant": Variant.ORIGINAL_DST},
    ]
    assert prepared(usual) is not None
    assert [prepared(replace(usual, **other)) for other in others] == [None] * len(others)


@pytest.mark.envoy
@pytest.mark.parametrize("name", COMMITTED)
async def test_committed_configuration_is_valid(name: str, tmp_path: Path) -> None:
    """Envoy reads certificates when it checks; those of two tiers are put where the check finds some."""
    await require_version(*FULL_FEATURED, "the ready configuration")
    self_signed(tmp_path / "tls.crt", tmp_path / "tls.key", "any")
    (tmp_path / "ca.crt").write_text((tmp_path / "tls.crt").read_text())
    file = tmp_path / "envoy.yaml"
    text = (FOLDER / name).read_text().replace("/etc/epp-relay", str(tmp_path))
    file.write_text(text.replace(EDS_PATH, str(FOLDER / "eds.json")))
    await accepted(file)


SETTINGS: dict[str, dict[str, Any]] = {
    "everything on": {
        "access_log": True,
        "health_check_path": "/health",
        "listener_host": "::",
        "picker_host": "picker.internal",
        "retries": 0,
    },
    "tls pool": {
        "endpoints": (
            Endpoint("replica.test:8443", tls=True),
            Endpoint("[fd00::1]:8443", tls=True),
            Endpoint("10.0.0.1:8000", draining=True),
        )
    },
    "original-dst tls": {
        "variant": Variant.ORIGINAL_DST,
        "endpoints": (Endpoint("10.0.0.1:8443", tls=True, server_name="replica.test"),),
        "destination_patterns": (r"10\.8\.[0-9.]+:8000",),
    },
    "original-dst of a thousand": {
        "variant": Variant.ORIGINAL_DST,
        "endpoints": tuple(Endpoint(f"10.{number >> 8}.{number & 255}.1:8000") for number in range(1000)),
    },
    "several pickers": {
        "fallback_pickers": (("picker.internal", 9002), ("10.0.0.2", 9002)),
    },
    "several pickers, full duplex": {
        "variant": Variant.FULL_DUPLEX,
        "fallback_pickers": (("10.0.0.2", 9002),),
    },
    "picker tls": {"picker_tls": TlsFiles(server_name="picker.test"), "variant": Variant.FULL_DUPLEX},
}


@pytest.mark.envoy
@pytest.mark.parametrize("name", SETTINGS)
async def test_other_settings_are_valid(name: str, tmp_path: Path) -> None:
    require_envoy()
    known = min(FULL_FEATURED, await version_of(find_envoy()))
    values = {"endpoints": ENDPOINTS, "envoy_version": known} | SETTINGS[name]
    file = tmp_path / "envoy.yaml"
    file.write_text(render(EnvoySettings(**values)))
    await accepted(file)


def test_admin_is_on_loopback_and_no_source_is_a_header() -> None:
    for name in COMMITTED:
        tree = yaml.load(text := (FOLDER / name).read_text(), yaml.CSafeLoader)
        assert tree["admin"]["address"]["socket_address"]["address"] == "127.0.0.1"
        assert "use_http_header" not in text
        assert "override_host_sources:\n            - header" not in text


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"upstream_idle_timeout_s": 0.0001}, "upstream_idle_timeout_s"),  # would be written as 0: none at all
        ({"preconnect_ratio": 9}, "preconnect_ratio"),
        ({"destination_patterns": (".*",)}, "destination_patterns"),
        ({"variant": Variant.ORIGINAL_DST, "endpoints": (Endpoint("name.test:1"),)}, "name.test:1"),
        ({"variant": Variant.ORIGINAL_DST, "endpoints": (Endpoint("10.0.0.1:1"), Endpoint("10.0.0.2:1", tls=True))}, "tls"),
    ],
)  # fmt: skip
def test_contradictions_are_refused(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        render(EnvoySettings(**({"endpoints": ENDPOINTS} | changes)))
    assert caught.value.key == key


def test_the_usual_envoy_is_that_of_the_usual_configuration() -> None:
    """And so is filled in, not rendered."""
    usual = EnvoySettings(endpoints=(), first_token_host="127.0.0.1")
    assert settings_from_config(Config(), ()) == usual


@pytest.mark.parametrize(("policy", "known"), [("gorgo-ms", 1), ("llm-d-profile", 2)])
def test_an_envoy_knows_those_that_answer_by_the_policy(policy: str, known: int) -> None:
    pool = [Endpoint("10.0.0.1:1", roles=frozenset({Role.PREFILL})), Endpoint("10.0.0.2:1")]
    settings = settings_from_config(Config(policy=PolicySection(name=policy)), pool)
    assert list(settings.endpoints) == pool[-known:]


@pytest.mark.parametrize(("max_requests", "wanted"), [(5_000, 10_000), (20_000, 40_000)])
def test_an_envoy_lets_as_many_requests_wait_as_long_as_the_picker_does(
    max_requests: int, wanted: int
) -> None:
    queue = QueueSection(max_requests=max_requests, ttl_s=60.0)
    listen = Listen(stall_limit_s=8.0)
    text = render(settings_from_config(Config(queue=queue, listen=listen), ENDPOINTS))
    assert "max_message_timeout: 66s" in text
    clusters = {each["name"]: each for each in yaml.safe_load(text)["static_resources"]["clusters"]}
    for name in (REPLICAS, PICKER):
        (limits,) = clusters[name]["circuit_breakers"]["thresholds"]
        assert (limits["max_requests"], limits["max_pending_requests"]) == (wanted, wanted)
        assert limits["max_connections"] == 3 * wanted
    (options,) = clusters[PICKER]["typed_extension_protocol_options"].values()
    ping = options["explicit_http_config"]["http2_protocol_options"]["connection_keepalive"]
    assert ping == {"interval": "4s", "timeout": "4s"}, "found within the limit"


def config_folder(folder: Path) -> Path:
    (folder / "epp.yaml").write_text("listen:\n  grpc: 0.0.0.0:9102\nrequest:\n  max_body_bytes: 1048576\n")
    (folder / "endpoints.yaml").write_text("endpoints:\n- address: 10.0.0.1:8000\n- address: 10.0.0.2:8000\n")
    return folder / "epp.yaml"


def test_command_renders_what_the_configuration_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_folder(tmp_path)
    assert main(["envoy", "render", "--config", str(config), "--listen", "0.0.0.0:80"]) == 0
    text = capsys.readouterr().out
    tree = yaml.safe_load(text)
    assert "request_body_buffer_limit: 1048576" in text
    assert tree["static_resources"]["listeners"][0]["address"]["socket_address"]["port_value"] == 80
    picker = tree["static_resources"]["clusters"][1]["load_assignment"]["endpoints"][0]["lb_endpoints"][0]
    assert picker["endpoint"]["address"]["socket_address"] == {"address": "127.0.0.1", "port_value": 9102}


def test_command_names_other_pickers_behind_the_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--fallback-picker", "10.0.0.2:9002", "--fallback-picker", "10.0.0.3:9002"]
    assert main(["envoy", "render", "--config", str(config_folder(tmp_path)), *words]) == 0
    tree = yaml.safe_load(capsys.readouterr().out)
    [picker] = [each for each in tree["static_resources"]["clusters"] if each["name"] == "picker"]
    found = {
        group.get("priority", 0): [
            host["endpoint"]["address"]["socket_address"]["address"] for host in group["lb_endpoints"]
        ]
        for group in picker["load_assignment"]["endpoints"]
    }
    assert found == {0: ["127.0.0.1"], 1: ["10.0.0.2", "10.0.0.3"]}
    assert "grpc_health_check" in picker["health_checks"][0]


def test_command_lets_envoy_follow_the_file_that_the_picker_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_folder(tmp_path)

    def cluster(*flags: str) -> tuple[Any, str]:
        assert main(["envoy", "render", "--config", str(config), *flags]) == 0
        said = capsys.readouterr()
        return yaml.safe_load(said.out)["static_resources"]["clusters"][0], said.err

    found, note = cluster()
    assert found["eds_cluster_config"]["eds_config"]["path_config_source"]["path"] == f"{tmp_path}/eds.json"
    assert note == f"epp: start the picker before Envoy: it writes {tmp_path}/eds.json\n"
    (tmp_path / "eds.json").write_text("")
    assert cluster() == (found, "")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "epp.yaml").symlink_to(config)
    assert cluster("--config", str(tmp_path / "links" / "epp.yaml")) == (found, ""), "as the picker has it"
    config.write_text("pool: {eds_file: ''}\npolicy: {fallbacks: 0}")
    assert cluster()[0]["type"] == "STATIC", "they share no file system"
    config.write_text("policy: {fallbacks: 0}")
    assert cluster("--variant", "original-dst")[0]["type"] == "ORIGINAL_DST"


@pytest.mark.parametrize(("budget_ms", "timeout"), [(20, "0.250s"), (50, "0.250s"), (600.5, "0.801s")])
def test_envoy_waits_as_long_as_the_picker_may_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], budget_ms: float, timeout: str
) -> None:
    """A pick that comes after the message timeout is lost, and the request goes anywhere."""
    config = config_folder(tmp_path)
    config.write_text(yaml.safe_dump({"tokens": {"budget_ms": budget_ms}}))
    assert main(["envoy", "render", "--config", str(config)]) == 0
    assert f"message_timeout: {timeout}\n" in capsys.readouterr().out


def test_command_names_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_folder(tmp_path)
    assert main(["envoy", "render", "--config", str(config), "--listen", "nowhere"]) == 2
    assert "--listen" in capsys.readouterr().err
    assert main(["envoy", "render", "--config", str(config), "--listen", "localhost:8080"]) == 2
    assert "--listen: Envoy listens on addresses" in capsys.readouterr().err
    assert main(["envoy", "render", "--config", str(config), "--tier", "relay:eu"]) == 2
    assert "relays.regions: no relay for 'eu'" in capsys.readouterr().err
    assert main(["envoy", "render", "--config", str(config), "--variant", "original-dst"]) == 2
    assert f"{config}: policy.fallbacks: " in (told := capsys.readouterr().err), "the default sends two"
    assert "policy: {fallbacks: 0}" in told
    config.write_text("listen: {tls: {self_signed: true}}\n")
    assert main(["envoy", "render", "--config", str(config)]) == 2
    assert "listen.tls.self_signed: Envoy verifies" in capsys.readouterr().err
    config.write_bytes(b"policy: {name: caf\xe9}\n")
    assert main(["envoy", "render", "--config", str(config)]) == 2
    assert f"{config}: " in capsys.readouterr().err
    config.write_text("pool: {kubernetes: {pool_name: llama}}\n")
    assert main(["envoy", "render", "--config", str(config)]) == 2
    assert "pool.kubernetes: an Envoy cannot be rendered" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["envoy", "render", "--config", str(config), "--variant", "standalon"])
    assert "choose from" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--preconnect-ratio", "9"], "--preconnect-ratio: must be from 1 to 3"),
        (["--out", "absent/envoy.yaml"], "--out: absent/envoy.yaml cannot be written: No such file"),
    ],
)
def test_a_flag_that_cannot_be_is_named_as_it_was_given(
    flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["envoy", "render", "--config", str(config_folder(tmp_path)), *flags]) == 2
    assert f"<arguments>: {words}" in capsys.readouterr().err
