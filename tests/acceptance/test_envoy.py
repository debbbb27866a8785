"""Envoys as operators write them: ways of sending bodies to the picker, relays, and faults that the doctor names."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.acceptance.kit import MODEL, QUICK, Stack, answers, free_ports, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

AHEAD = "send_body_without_waiting_for_header_response: true\n              message_timeout:"
#: Way of sending request bodies -> variant of the configuration, then what an operator changes in it.
MODES: dict[str, tuple[str, dict[str, str]]] = {
    "buffered": ("standalone", {}),
    "streamed-ahead": (
        "standalone",
        {"body_mode: BUFFERED": "body_mode: STREAMED", " message_timeout:": f" {AHEAD}"},
    ),
    "full-duplex": ("full-duplex", {}),
}


def picked(stack: Stack, decision: str) -> str:
    """Name the replica that a decision chose."""
    shown = stack.epp("explain", "--url", stack.picker_url, decision)
    return next(name for name, port in stack.ports.items() if f"127.0.0.1:{port} was chosen " in shown)


@pytest.mark.parametrize("mode", MODES)
def test_a_request_is_served_where_it_was_picked_to(stack: Stack, mode: str) -> None:
    variant, changes = MODES[mode]
    stack.start_envoy("--variant", variant, changes=changes)
    for stream in (False, True):
        answer = stack.chat("a long question " * 2000, stream=stream)
        assert answer.status == 200
        assert picked(stack, answer.headers["x-epp-decision-id"]) == answer.headers["x-served-by"]
        if stream:
            assert answer.text.endswith("data: [DONE]\n\n")
        else:
            assert answer.json["usage"]["completion_tokens"] == 4


def certificates(folder: Path) -> dict[str, str]:
    """Make a certificate for either tier; the paths as the global tier's configuration has them."""
    for side in ("global", "relay"):
        name = f"{side}.epp.internal"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
             "-keyout", f"{side}.key", "-out", f"{side}.crt", "-days", "2", "-subj", f"/CN={name}",
             "-addext", f"subjectAltName=DNS:{name}"],
            check=True, capture_output=True, cwd=folder,
        )  # fmt: skip
    both = "".join((folder / f"{side}.crt").read_text(encoding="utf-8") for side in ("global", "relay"))
    (folder / "ca.crt").write_text(both, encoding="utf-8")
    files = {"ca_file": "ca.crt", "cert_file": "global.crt", "key_file": "global.key"}
    return {key: str(folder / file) for key, file in files.items()}


@pytest.fixture(scope="module")
def two_tiers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One replica and one relay in each of two regions; a header binds requests to a region."""
    folder = tmp_path_factory.mktemp("tiers")
    regions = ("near", "far")
    with Stack(folder) as stack:
        stack.start_replicas(*regions)
        pool = [{"address": f"127.0.0.1:{stack.ports[region]}", "region": region} for region in regions]
        stack.write("endpoints.yaml", {"endpoints": pool})
        addresses = {region: f"127.0.0.1:{port}" for region, port in zip(regions, free_ports(2), strict=True)}
        relays: dict[str, Any] = {"regions": addresses, "connections": 1, **certificates(folder)}
        rules = [{"allow": [region], "header": "x-region", "value": region} for region in regions]
        patient = {**QUICK["probe"], "timeout_s": 10.0}  # a busy machine answers late
        stack.start_picker(relays=relays, regions=rules, probe=patient)
        for region, address in addresses.items():
            words = ("--tier", f"relay:{region}", "--listen", address, "--admin-port", str(free_ports(1)[0]))
            own = {"global.crt": "relay.crt", "global.key": "relay.key"}
            stack.run_envoy(f"relay-{region}", *words, changes=own)
        until(stack.ready)
        stack.start_envoy()
        yield stack


def test_relays_hand_requests_on_to_the_replica_picked(two_tiers: Stack) -> None:
    for region in ("near", "far", "far", "near"):
        answer = two_tiers.chat(headers={"x-region": region})
        assert (answer.status, answer.headers["x-served-by"]) == (200, region)
        assert picked(two_tiers, answer.headers["x-epp-decision-id"]) == region


def test_the_doctor_finds_two_tiers_healthy(two_tiers: Stack) -> None:
    printed = two_tiers.epp("doctor", "--config", "epp.yaml", "--envoy-admin", two_tiers.admin)
    assert "holds all relays" in printed
    assert "checks made: traffic " in printed
    assert printed.rstrip().endswith("all of it is fine")


#: A fault -> what the doctor says it is, and what to do.
FAULTS = {
    "engine down": ("no metrics from 127.0.0.1:", "run this at the picker"),
    "picker elsewhere": ("the picker does not answer at http://127.0.0.1:", "--picker"),
    "another port in Envoy": ("does not hold 127.0.0.1:", "render Envoy's configuration again"),
    "another model": ("does not serve 'other'", MODEL),
    "short timeout": ("message_timeout is 20 ms", "set message_timeout to about 0.25s"),
    "no bodies": ("request bodies are not sent to the picker", "set request_body_mode: BUFFERED"),
}
CHANGES = {
    "short timeout": {" message_timeout: 2s": " message_timeout: 0.020s"},
    "no bodies": {"body_mode: BUFFERED": "body_mode: NONE"},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_doctor_names_a_fault_and_its_fix(stack: Stack, fault: str) -> None:
    """Each is a pool file or an Envoy of its own beside the same picker."""
    admin, elsewhere = stack.admin, f"127.0.0.1:{free_ports(1)[0]}"
    if fault in CHANGES:
        ports = free_ports(2)
        words = ("--listen", f"127.0.0.1:{ports[0]}", "--admin-port", str(ports[1]))
        stack.run_envoy(fault.replace(" ", "-"), *words, changes=CHANGES[fault])
        admin = f"http://127.0.0.1:{ports[1]}"
        until(lambda: answers(f"{admin}/ready"))
    endpoint: dict[str, Any] = {"address": f"127.0.0.1:{stack.ports['a']}"}
    if fault in ("engine down", "another port in Envoy"):
        endpoint["address"] = elsewhere
    if fault == "another model":
        endpoint["models"] = ["other"]
    stack.write("pool.json", {"endpoints": [endpoint]})
    stack.write("doctor.yaml", {"pool": {"file": "pool.json"}})
    picker = f"http://{elsewhere}" if fault == "picker elsewhere" else stack.picker_url
    command = ("doctor", "--config", "doctor.yaml", "--picker", picker, "--envoy-admin", admin)
    printed = stack.epp(*command, status=1)
    assert all(text in printed for text in FAULTS[fault]), printed
