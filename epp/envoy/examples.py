"""The three configurations committed under `deploy/envoy/`, for the pool of the example configuration."""

from __future__ import annotations

from pathlib import Path

from epp.envoy.render import render, write
from epp.envoy.settings import EnvoySettings, Variant
from epp.signals.endpoint import Endpoint

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "envoy"
ENDPOINTS = tuple(Endpoint(f"127.0.0.1:{port}") for port in (8001, 8002, 8003))


def examples() -> dict[str, str]:
    """File name to content."""
    return {
        f"{variant}.yaml": render(EnvoySettings(endpoints=ENDPOINTS, variant=variant)) for variant in Variant
    }


def main() -> None:
    """Write them: `python -m epp.envoy.examples`."""
    for name, text in examples().items():
        write(FOLDER / name, text)


if __name__ == "__main__":
    main()
