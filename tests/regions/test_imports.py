"""Who is no region among peers pays nothing for them."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

START = """
import sys
from pathlib import Path
from epp.config.load import parse_config
from epp.server.app import App
from epp.server.process import SystemClock
folder = Path(sys.argv[1])
App(parse_config((folder / "epp.yaml").read_text(), "epp.yaml"), folder, "epp.yaml", SystemClock())
print(*(name for name in sys.modules if name.startswith("epp.regions")))
"""


RELAYS = "{regions: {eu: '10.0.0.1:1', us: '10.0.0.2:1'}, ca_file: a, cert_file: b, key_file: c}"
PEERS = f"federation: {{region: eu, key_file: secret}}\nrelays: {RELAYS}"


@pytest.mark.parametrize(("more", "wanted"), [("", False), (PEERS, True)])
def test_only_a_region_among_peers_imports_what_they_need(tmp_path: Path, more: str, wanted: bool) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef")
    (tmp_path / "epp.yaml").write_text(
        "nats: {url: 'nats://127.0.0.1:1'}\nprefix: {secret_file: secret}\n" + more
    )
    found = subprocess.run(
        (sys.executable, "-c", START, tmp_path), capture_output=True, text=True, check=True, timeout=240
    )
    assert bool(found.stdout.strip()) == wanted
