"""The committed configurations are fresh and sound, and the settings are checked."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from epp.cli import main
from epp.config.eds import eds_content, known_as
from epp.config.load import parse_config
from epp.config.pool import parse_pool
from epp.envoy.examples import EDS_PATH, ENDPOINTS, FOLDER, examples
from epp.envoy.process import EnvoyError, EnvoyProcess, find_envoy, validate, version_of
from epp.envoy.render import render
from epp.envoy.settings import FULL_FEATURED, EnvoySettings, TlsFiles, Variant
from epp.errors import ConfigError
from epp.types import Endpoint
from tests.kit.certificates import self_signed
from tests.kit.envoy import require_envoy, require_version

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", sorted(examples()))
def test_committed_configuration_is_fresh(name: str) -> None:
    assert (FOLDER / name).read_text() == examples()[name], "run python -m epp.envoy.examples"


def test_the_ready_envoy_follows_what_the_example_picker_writes() -> None:
    deploy = FOLDER.parent
    pool = parse_config((deploy / "epp.example.yaml").read_bytes(), "epp.example.yaml").pool
    file = deploy / pool.eds_file
    assert file == deploy.parent / EDS_PATH
    specs = parse_pool((deploy / pool.file).read_bytes(), pool.file)
    assert eds_content(spec.endpoint() for spec in specs.values()) == file.read_bytes()


def test_every_variant_is_committed() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(Variant)
    committed = [path for suffix in ("yaml", "json") for path in FOLDER.rglob(f"*.{suffix}")]
    assert {str(path.relative_to(FOLDER)) for path in committed} == set(examples())


@pytest.mark.envoy
@pytest.mark.parametrize("name", sorted(name for name in examples() if name.endswith(".yaml")))
async def test_committed_configuration_is_valid(name: str, tmp_path: Path) -> None:
    """Envoy reads certificates when it checks; those of two tiers are put where the check finds some."""
    await require_version(*FULL_FEATURED, "the ready configuration")
    self_signed(tmp_path / "tls.crt", tmp_path / "tls.key", "any")
    (tmp_path / "ca.crt").write_text((tmp_path / "tls.crt").read_text())
    file = tmp_path / "envoy.yaml"
    text = (FOLDER / name).read_text().replace("/etc/epp-relay", str(tmp_path))
    file.write_text(text.replace(EDS_PATH, str(FOLDER / "eds.json")))
    await validate(file)


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
    "original-dst eight ports a pod": {
        "variant": Variant.ORIGINAL_DST,
        "endpoints": (),
        "destination_patterns": (r"([0-9.]+|\[[0-9a-f:]+\]):(8000|18011|28022|38033|48044|58055|9066|7077)",),
    },
    "original-dst empty pool": {"variant": Variant.ORIGINAL_DST, "endpoints": ()},
    "empty pool": {"endpoints": ()},
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
    await validate(file)


def test_admin_is_on_loopback_and_no_source_is_a_header() -> None:
    for name, text in examples().items():
        if name == "eds.json":
            continue
        tree = yaml.safe_load(text)
        assert tree["admin"]["address"]["socket_address"]["address"] == "127.0.0.1"
        assert "use_http_header" not in text
        assert "override_host_sources:\n            - header" not in text


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"upstream_idle_timeout_s": math.nan}, "upstream_idle_timeout_s"),
        ({"upstream_idle_timeout_s": math.inf}, "upstream_idle_timeout_s"),
        ({"upstream_idle_timeout_s": 1e10}, "upstream_idle_timeout_s"),
        ({"upstream_idle_timeout_s": 0.0001}, "upstream_idle_timeout_s"),  # would be written as 0: none at all
        ({"max_body_bytes": 1 << 32}, "max_body_bytes"),
        ({"preconnect_ratio": 9}, "preconnect_ratio"),
        ({"first_token_port": 70_000}, "first_token_port"),
        ({"destination_patterns": (".*",)}, "destination_patterns"),
        ({"variant": Variant.ORIGINAL_DST, "endpoints": (Endpoint("name.test:1"),)}, "name.test:1"),
        ({"variant": Variant.ORIGINAL_DST, "eds_path": "/eds.yaml"}, "eds_path"),
        ({"variant": Variant.ORIGINAL_DST, "endpoints": (Endpoint("10.0.0.1:1"), Endpoint("10.0.0.2:1", tls=True))}, "tls"),
        ({"endpoints": (Endpoint("10.0.0.1"),)}, "10.0.0.1"),
    ],
)  # fmt: skip
def test_contradictions_are_refused(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        render(EnvoySettings(**({"endpoints": ENDPOINTS} | changes)))
    assert caught.value.key == key


def test_eds_takes_addresses_only() -> None:
    with pytest.raises(ConfigError):
        eds_content([Endpoint("name.test:80")])


@pytest.mark.parametrize(
    ("address", "known"),
    [
        ("10.0.0.1:80", "10.0.0.1:80"),
        ("[fd00:0:0::1]:80", "[fd00::1]:80"),
        ("[::ffff:a00:1]:80", "[::ffff:10.0.0.1]:80"),
        ("name.test:80", "name.test:80"),
    ],
)
def test_spelling_that_envoy_knows(address: str, known: str) -> None:
    assert known_as(address) == known


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


def test_command_sets_connections_for_far_engines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["envoy", "render", "--config", str(config_folder(tmp_path))]
    assert main([*arguments, "--upstream-idle-timeout", "590", "--preconnect-ratio", "2"]) == 0
    text = capsys.readouterr().out
    assert "idle_timeout: 590s" in text
    assert "per_upstream_preconnect_ratio: 2" in text
    assert main([*arguments, "--preconnect-ratio", "9"]) == 2
    assert "must be from 1 to 3" in capsys.readouterr().err


def test_command_writes_files(tmp_path: Path) -> None:
    config, out, eds = config_folder(tmp_path), tmp_path / "envoy.yaml", tmp_path / "eds.yaml"
    arguments = ["envoy", "render", "--config", str(config), "--out", str(out), "--eds", str(eds)]
    assert main(arguments) == 0
    assert str(eds) in out.read_text()
    assert "10.0.0.2" in eds.read_text()
    out.unlink()
    assert main([*arguments, "--eds-only"]) == 0
    assert not out.exists()


def test_command_names_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_folder(tmp_path)
    assert main(["envoy", "render", "--config", str(config), "--listen", "nowhere"]) == 2
    assert "--listen" in capsys.readouterr().err
    assert main(["envoy", "render", "--config", str(config), "--listen", "localhost:8080"]) == 2
    assert "--listen: Envoy listens on addresses" in capsys.readouterr().err
    assert main(["envoy", "render", "--config", str(config), "--tier", "relay:eu"]) == 2
    assert f"{config}: relays.regions: no relay for 'eu'" in capsys.readouterr().err
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


def test_missing_binary_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EPP_ENVOY", str(tmp_path / "none"))
    with pytest.raises(EnvoyError, match="EPP_ENVOY"):
        find_envoy()


@pytest.mark.envoy
async def test_refused_configuration_is_reported_with_envoys_words(tmp_path: Path) -> None:
    require_envoy()
    file = tmp_path / "envoy.yaml"
    file.write_text("admin: {nonsense: 1}\n")
    with pytest.raises(EnvoyError, match="nonsense"):
        await validate(file)
    bad = EnvoySettings(
        endpoints=ENDPOINTS,
        listener_port=0,
        admin_port=0,
        variant=Variant.ORIGINAL_DST,
        destination_patterns=("(",),
    )
    process = EnvoyProcess(bad, folder=tmp_path)
    with pytest.raises(EnvoyError, match="missing"):
        await process.__aenter__()
    with pytest.raises(RuntimeError):
        _ = process.pid


def test_what_an_older_envoy_does_not_know_is_left_out() -> None:
    def names(version: tuple[int, int]) -> str:
        return render(EnvoySettings(endpoints=ENDPOINTS, envoy_version=version))

    since = {"selected_host_key": (1, 38), "custom_tags": (1, 37)}
    for minor in (36, 37, 38, 40):
        for field, first in since.items():
            assert (field in names((1, minor))) == ((1, minor) >= first), (field, minor)


def test_fallbacks_are_refused_where_envoy_takes_one_endpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "endpoints.yaml").write_text("endpoints: [{address: '10.0.0.1:8000'}]")
    config = tmp_path / "epp.yaml"
    arguments = ["envoy", "render", "--config", str(config), "--variant", "original-dst"]
    config.write_text("")  # the default sends two
    assert main(arguments) == 2
    assert f"{config}: policy.fallbacks: " in (told := capsys.readouterr().err)
    assert "policy: {fallbacks: 0}" in told
    config.write_text("policy: {fallbacks: 0}")
    assert main(arguments) == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--preconnect-ratio", "9"], "--preconnect-ratio: must be from 1 to 3"),
        (["--health-check", "health"], "--health-check: must begin with /"),
        (["--admin-port", "99999"], "--admin-port: must be a port"),
        (["--upstream-idle-timeout", "0"], "--upstream-idle-timeout: must be from 0.001 to"),
        (["--out", "absent/envoy.yaml"], "--out: absent/envoy.yaml cannot be written: No such file"),
        (["--eds", "absent/eds.yaml"], "--eds: absent/eds.yaml cannot be written: No such file"),
    ],
)
def test_a_flag_that_cannot_be_is_named_as_it_was_given(
    flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "endpoints.yaml").write_text("endpoints: [{address: '10.0.0.1:8000'}]")
    (tmp_path / "epp.yaml").write_text("")
    assert main(["envoy", "render", "--config", str(tmp_path / "epp.yaml"), *flags]) == 2
    assert f"<arguments>: {words}" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["1", "1.x", "new"])
def test_a_version_that_is_none_is_told(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "endpoints.yaml").write_text("endpoints: []")
    (tmp_path / "epp.yaml").write_text("")
    assert main(["envoy", "render", "--config", str(tmp_path / "epp.yaml"), "--envoy-version", text]) == 2
    assert "e.g. 1.36" in capsys.readouterr().err
