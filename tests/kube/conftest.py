from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kit.kubecluster import Cluster
from tests.kit.kubereal import RealKube, binaries
from tests.kit.kubeserver import KubeServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def real_kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKube]:
    server = RealKube(tmp_path_factory.mktemp("kube"))
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(params=["kit", "real"] if binaries() else ["kit"])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    """The same cases on the kit's server and, where there is one, on a real one."""
    server: KubeServer | RealKube
    if request.param == "real":
        server = request.getfixturevalue("real_kube")
    else:
        server = KubeServer()
        await server.start()
    cluster = Cluster(server, tmp_path)
    await cluster.start()
    yield cluster
    await cluster.stop()
    if isinstance(server, KubeServer):
        await server.stop()
