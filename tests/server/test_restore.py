"""The prefix index out of records, while the pool goes on changing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from epp.feeds.restore import IndexRestore
from epp.prefix_cache.warm_index import WarmIndex
from epp.signals.datastore import Datastore
from tests.kit.clock import ManualClock
from tests.kit.records import HASHER, POOL, decided, record_all

if TYPE_CHECKING:
    from pathlib import Path

    from epp.records.restore import Restored


@pytest.mark.parametrize("lost", ["nothing", "its engine restarted", "it left", "it left and came back"])
async def test_what_an_endpoint_loses_while_records_are_read_is_not_restored(
    tmp_path: Path, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests, clock = decided(24), ManualClock()
    record_all(tmp_path, requests)
    index = WarmIndex(name_block=HASHER.export_id, coarse_blocks=HASHER.coarse_blocks)
    datastore = Datastore(index)
    datastore.apply(POOL, 0.0)
    restore = IndexRestore(tmp_path, index=index, datastore=datastore, key_id=HASHER.key_id, clock=clock)
    monkeypatch.setattr("epp.feeds.restore.WINDOW_S", 1e12)
    read, gone = restore._read, POOL[0]

    def reading(*arguments: Any) -> Restored:
        restored = read(*arguments)
        if lost == "its engine restarted":
            datastore.restart(gone.address, 1.0)
        elif lost != "nothing":
            datastore.apply(POOL[1:], 1.0)
            if lost == "it left and came back":
                datastore.apply(POOL, 2.0)
        return restored

    monkeypatch.setattr(restore, "_read", reading)
    await restore.run()
    held: set[str | None] = set()
    for _, ask in requests:
        for name in HASHER.coarse_ids(ask):
            assert index._seeds is not None
            held |= {datastore.address_of(slot) for slot in index._seeds.take(name)}
    assert held == {endpoint.address for endpoint in POOL if lost == "nothing" or endpoint is not gone}
