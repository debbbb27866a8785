"""Draw the cases of `test_drawn_cases` from llm-d's own code: ``python -m tests.llmd.draw.make_cases ROUTER``.

ROUTER is a clone of llm-d/llm-d-router. The filters, scorers and hashes that `driver.go` asks are its files, as they
are at COMMIT; what they import beside each other (logs, Kubernetes, metrics) is `stubs.txt`, so that Go alone is
needed to build them.
"""

from __future__ import annotations

import lzma
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
CASES = HERE.parent / "drawn_cases.jsonl.xz"
COMMIT = "ebab687927f5331c1b39defcb579a07951bce56c"
_BASE = "pkg/epp/framework"
_FILES = """
interface/datalayer/attributemap.go interface/datalayer/endpoint_metadata.go interface/datalayer/metrics.go
interface/plugin/datakey.go interface/plugin/typedname.go
plugins/datalayer/attribute/concurrency/data_types.go plugins/datalayer/attribute/latency/data_types.go
plugins/datalayer/attribute/prefix/data_types.go
plugins/flowcontrol/saturationdetector/concurrency/config.go
plugins/flowcontrol/saturationdetector/concurrency/detector.go
plugins/flowcontrol/saturationdetector/utilization/config.go
plugins/flowcontrol/saturationdetector/utilization/detector.go
plugins/requestcontrol/dataproducer/approximateprefix/constants/constants.go
plugins/requestcontrol/dataproducer/inflightload/constants/constants.go
plugins/requestcontrol/dataproducer/predictedlatency/constants/constants.go
plugins/requestcontrol/dataproducer/prefixhash/hashing.go
plugins/scheduling/filter/bylabel/filter.go plugins/scheduling/filter/bylabel/roles.go
plugins/scheduling/filter/prefixcacheaffinity/plugin.go plugins/scheduling/filter/utilization/filter.go
plugins/scheduling/scorer/activerequest/active_request.go plugins/scheduling/scorer/headerlabelaffinity/plugin.go
plugins/scheduling/scorer/kvcacheutilization/kvcache_utilization.go
plugins/scheduling/scorer/loadaware/load_aware.go plugins/scheduling/scorer/loraaffinity/lora_affinity.go
plugins/scheduling/scorer/prefix/plugin.go plugins/scheduling/scorer/queuedepth/queue.go
plugins/scheduling/scorer/runningrequests/runningrequest.go plugins/scheduling/scorer/tokenload/token_load.go
"""


def lay(folder: Path, path: str, text: str) -> None:
    """Write a file of the module."""
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def main(router: str) -> None:
    """Assemble, build, run and compress."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in (HERE / "stubs.txt").read_text().split("-- ")[1:]:
            path, _, text = part.partition(" --\n")
            lay(folder, path, text)
        for path in _FILES.split():
            shown = ["git", "-C", router, "show", f"{COMMIT}:{_BASE}/{path}"]
            lay(folder, f"{_BASE}/{path}", subprocess.check_output(shown, text=True))
        lay(folder, "cmd/draw/driver.go", (HERE / "driver.go").read_text())
        made = subprocess.check_output(["go", "run", "./cmd/draw", COMMIT], cwd=folder)
    CASES.write_bytes(lzma.compress(made, preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main(sys.argv[1])
