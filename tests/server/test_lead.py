"""What the files of a picker are while it leads, and while another does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from epp.cluster.leading import LISTEN_S, Leading
from epp.cluster.messages import Lead
from epp.config.schema import Config
from epp.config.strict import convert
from epp.errors import ConfigError
from epp.feeds.lead import AGAIN_S, LeadFeed, followed_files, is_led, read_lead
from tests.kit.clock import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

SECTIONS = {
    "nats": {"url": "nats://127.0.0.1:1"},
    "prefix": {"secret_file": "secret"},
    "records": {"folder": "records"},
    "weights_file": "weights.yaml",
    "policy": {"name": "lodestar", "model_file": "reward.json"},
}


class Beside:
    """One picker's part; `sent` has what it gave the others."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, ManualClock()
        self.leading = Leading("b", self.clock.mono_s())
        self.sent: list[tuple[str, bytes | None]] = []
        config = convert(SECTIONS, Config, "test")
        files = followed_files(config, folder)
        publish = lambda name, content: self.sent.append((name, content))  # noqa: E731
        self.feed = LeadFeed(files, folder / "records", self.leading, publish, self.clock)

    async def look(self) -> None:
        self.sent.clear()
        self.clock.advance(1.0)
        self.leading.tick(self.clock.mono_s(), connected=True)
        await self.feed._look()

    async def lead(self) -> None:
        self.clock.advance(LISTEN_S)
        await self.look()
        assert self.leading.leads

    def follow(self, term: int) -> None:
        self.leading.hear("a", Lead(term, "a", self.clock.wall_s()), self.clock.mono_s(), self.clock.wall_s())
        assert self.leading.follows

    def write(self, name: str, content: bytes) -> None:
        (self.folder / name).write_bytes(content)

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()


@pytest.fixture
def beside(tmp_path: Path) -> Beside:
    return Beside(tmp_path)


async def test_a_leader_sends_what_it_has_when_it_changes_and_again_for_those_who_join(
    beside: Beside,
) -> None:
    beside.write("weights.yaml", b"one")
    memory = {"state": {"phase": "search"}, "feed": {"lines": {"a": 1}}, "requests_done": ["x"]}
    beside.write("weights.tuner.json", msgspec.json.encode(memory))
    await beside.lead()
    assert beside.sent == [
        ("weights", b"one"),
        ("tuner", b'{"state":{"phase":"search"}}'),  # its records lie beside this picker alone
        ("model", None),  # its writer removes it, and then it shall decide nowhere
    ]
    await beside.look()
    assert beside.sent == []
    beside.write("weights.yaml", b"two")
    await beside.look()
    assert beside.sent == [("weights", b"two")]
    beside.clock.advance(AGAIN_S)
    await beside.look()
    assert len(beside.sent) == 3
    (beside.folder / "weights.yaml").unlink()
    beside.write("weights.tuner.json", b"torn")
    beside.clock.advance(AGAIN_S)
    await beside.look()
    assert beside.sent == [("model", None)]


async def test_a_follower_writes_what_the_leader_has_and_refuses_all_else(beside: Beside) -> None:
    beside.write("weights.yaml", b"of an earlier life")
    beside.write("reward.json", b"old")
    parse = beside.feed.checked("weights", lambda text: text)
    assert parse(b"of an earlier life"), "nobody leads yet: what was in force stays"
    beside.follow(3)
    with pytest.raises(ConfigError, match="not what a has, which leads in term 3"):
        parse(b"of a sidecar that has not heard")
    for name, content in (("weights", b"one"), ("tuner", b"{}"), ("model", None), ("unknown", b"")):
        beside.feed.take(name, content)
    await beside.look()
    assert beside.read("weights.yaml") == b"one"
    assert beside.read("weights.tuner.json") == b"{}"
    assert not (beside.folder / "reward.json").exists()
    assert parse(b"one")
    beside.write("weights.yaml", b"of a sidecar that has not heard")
    await beside.look()
    assert beside.read("weights.yaml") == b"one"
    assert beside.sent == []


async def test_sidecars_hear_who_leads_and_terms_outlive_the_picker(beside: Beside, tmp_path: Path) -> None:
    records = tmp_path / "records"
    assert not read_lead(records).leads
    await beside.lead()
    assert read_lead(records).leads
    beside.leading.tick(beside.clock.mono_s(), connected=False)
    await beside.feed._look()
    assert (read_lead(records).leads, read_lead(records).leader) == (False, "")
    beside.follow(5)
    await beside.look()
    found = read_lead(records)
    assert (found.leads, found.term, found.leader) == (False, 5, "a")
    (records / "lead.json").write_bytes(b"{")
    assert read_lead(records).term == 0


async def test_what_an_earlier_leader_had_is_forgotten_by_one_that_leads(beside: Beside) -> None:
    beside.follow(1)
    beside.feed.take("weights", b"one")
    await beside.look()
    await beside.lead()
    beside.write("weights.yaml", b"two")
    await beside.look()
    assert beside.sent == [("weights", b"two")]
    assert beside.read("weights.yaml") == b"two"
    assert beside.feed.checked("weights", lambda text: text)(b"two")
    beside.follow(5)
    await beside.look()
    assert beside.read("weights.yaml") == b"two", "until the next leader has sent its own"
    beside.clock.advance(LISTEN_S)
    await beside.look()
    assert beside.leading.leads
    assert ("weights", b"two") in beside.sent


@pytest.mark.parametrize(
    "without",
    [{"nats": {}}, {"nats": {**SECTIONS["nats"], "lead": False}}, {"records": {}}],  # type: ignore[dict-item]
)
def test_alone_or_with_a_folder_that_all_share_nobody_leads(without: dict[str, dict[str, object]]) -> None:
    assert is_led(convert(SECTIONS, Config, "test"))
    assert not is_led(convert({**SECTIONS, **without}, Config, "test"))
