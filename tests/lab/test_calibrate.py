"""Engines are measured, and simulated as they are: in virtual time, over HTTP, and a real llama.cpp."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from epp.errors import EppError
from epp_lab.calibrate.fit import Measured, fit, least_squares, probes
from epp_lab.compare.fleets import fleet_named
from epp_lab.compare.results import encode
from epp_lab.experiment import main
from epp_lab.experiments import calibration
from epp_lab.sim.engine_class import A30, ENGINE_CLASSES, L40S_X2, EngineClass
from epp_lab.sim.network import NetworkPath
from epp_lab.sim.run import run_window
from epp_lab.sim.scenario import FleetSpec, ReplicaSpec
from epp_lab.workloads.registry import WORKLOADS
from tests.kit.llama_cpp import running_llama_cpp
from tests.kit.records import command
from tests.kit.replicas import QUICK, quick_config, replicas_in_thread

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: What the fit is not about.
OTHERS = ("chunk_tokens", "mixed", "output_reserve_ratio", "kv_capacity_tokens", "context_tokens")


def alone(cls: EngineClass) -> FleetSpec:
    return FleetSpec((ReplicaSpec("engine:8000", cls, NetworkPath(0.0)),))


def measured(cls: EngineClass, change: Callable[[Any], None] = lambda _: None) -> Measured:
    """Calibrate a simulated engine in virtual time, whatever changes its results."""
    sent = probes(4096, 2, seed=1)
    results = run_window(sent, alone(cls), "least-request").requests
    for result in results:
        change(result)
    return fit(sent, results, rtt_ms=0.0)


@pytest.mark.parametrize("name", ["l40s-x2", "l40s-x2-mixed", "l40s-x2-steep", "a30"])
def test_the_fit_recovers_a_simulated_engine(name: str) -> None:
    # Beside decodes no prefill is shorter than their step: how much shorter it is alone does not show.
    true = ENGINE_CLASSES[name] if name != "a30" else replace(A30, prefill_base_ms=25.0)
    found = measured(true)
    assert min(found.ttft.r2, found.step.r2) > 0.99
    fitted = found.engine_class("fitted", 2048, **{other: getattr(true, other) for other in OTHERS})
    near = pytest.approx
    assert fitted.frontend_ms == near(true.frontend_ms, rel=0.02)
    assert fitted.prefill_base_ms == near(true.prefill_base_ms, rel=0.02)
    assert fitted.frontend_ms_per_token == near(true.frontend_ms_per_token, rel=0.05)
    assert fitted.prefill_ms_per_token == near(true.prefill_ms_per_token, rel=0.01)
    for batch, step_ms in fitted.decode_curve:
        assert step_ms == near(true.decode_step_ms(batch), rel=1e-6)
    assert fitted.prefix_cache

    # And on a load that it was not fitted to, it answers as the engine does.
    load = WORKLOADS["small-chat"].make(3, 0.5)
    runs = [run_window(load, alone(cls), "least-request").requests for cls in (true, fitted)]
    for figure in ("ttft_ms", "e2e_ms"):
        truth, said = (np.percentile([getattr(r, figure) for r in run], (50, 95)) for run in runs)
        assert said == near(truth, rel=0.03)


def test_a_fit_ends_though_rounding_makes_a_coefficient_of_zero_negative() -> None:
    random = np.random.default_rng(46)
    x = np.column_stack([np.ones(12), random.integers(16, 512, 12), random.integers(1, 512, 12)])
    y = np.maximum(100.0 * (1.0 + random.random(12)) - x[:, 2] / 6.0, 1e-3)
    assert (least_squares(x, y).values >= 0.0).all()


def test_engines_are_measured_over_http_and_compared(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "fleet.json"
    with replicas_in_thread(quick_config("a"), quick_config("b", rtt_ms=2.0)) as (a, b):
        words = ("--longest", 512, "--rounds", 1, "--out", file)
        assert command("lab", "calibrate", f"near={a}", f"far={b}", *words) == 0
        for wrong, problem in (
            ((a, "--model", "other"), "HTTP 404: .*The model `other` does not exist"),
            ((f"{a}/off",), f"{a}/off/v1/models: HTTP 404"),
        ):
            with pytest.raises(EppError, match=problem):
                command("lab", "calibrate", *wrong, *words)
    with pytest.raises(EppError, match="v1/models: ClientConnectorError"):
        command("lab", "calibrate", a, *words)
    assert capfd.readouterr().out.count("R2 ") == 4
    near, far = fleet_named(str(file)).replicas
    assert (near.region, near.address, far.region) == ("near", a.removeprefix("http://"), "far")
    assert near.engine_class.kv_capacity_tokens == QUICK.kv_capacity_tokens // 16 * 16
    assert near.engine_class.context_tokens == QUICK.context_tokens
    assert far.network.rtt_ms > 2.0
    compared = (
        "--workload",
        "small-chat",
        "--policy",
        "gorgo-ms,least-request",
        "--seeds",
        1,
        "--workers",
        1,
    )
    assert command("lab", "compare", "--fleet", file, *compared, "--out", tmp_path / "report") == 0
    file.write_text('{"replicas": 1}')
    with pytest.raises(EppError, match=f"fleet {file}: Expected `array`"):
        fleet_named(str(file))


def test_llama_cpp_is_measured(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "fleet.json"
    with running_llama_cpp(tmp_path, "tiny") as url:
        words = ("--longest", 512, "--rounds", 1, "--out", file)
        assert command("lab", "calibrate", f"llama={url}", *words) == 0
    assert "llama: tiny, round trip" in capfd.readouterr().out
    (replica,) = fleet_named(str(file)).replicas
    assert replica.engine_class.prefix_cache
    # It has one slot; two short answers can seem to overlap.
    assert replica.engine_class.max_running <= 2


@pytest.mark.envoy
def test_policies_are_measured_beside_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calibration, "WINDOW_S", 4.0)
    file = tmp_path / "fleet.json"
    with replicas_in_thread(*(quick_config(name, engine_class=L40S_X2) for name in "ab")) as urls:
        addresses = [url.removeprefix("http://") for url in urls]
        file.write_bytes(encode(FleetSpec(tuple(ReplicaSpec(each, L40S_X2) for each in addresses))))
        words = ["--fleet", str(file), "--seeds", "1", "--kept", str(tmp_path / "kept")]
        words += ["--cells", "measured / light,simulated / light", "--entries", "least-request,gorgo-ms"]
        assert main("calibration", calibration.EXPERIMENT, words) == 0
    said = capsys.readouterr().out
    assert "| measured / light | gorgo-ms |" in said
    assert "| TTFT p50 ms | simulated / light | " in said
