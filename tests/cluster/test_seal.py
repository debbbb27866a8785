"""Who is believed on a bus, in conversations of processes that hold the key, and of one that only listens."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.cluster import seal as seals
from epp.cluster.seal import MAX_PEERS, RefusedError, Seal, key_of
from epp.errors import EppError, UnreadableError

KEY, NEXT = key_of(b"first secret of sixteen", b"epp test"), key_of(b"second secret of sixteen", b"epp test")


@dataclass
class Bus:
    """Processes on a bus, and all that was ever said on it."""

    seals: dict[str, Seal] = field(default_factory=dict)
    recorded: list[tuple[str, bytes]] = field(default_factory=list)

    def join(self, name: str, *keys: bytes) -> Seal:
        def greet(to: str, content: bytes) -> None:
            data = made.sign(f"hello.{to}", content)
            self.recorded.append((f"hello.{to}", data))
            if to in self.seals:
                self.seals[to].greeted(f"hello.{to}", data)

        made = self.seals[name] = Seal(keys or (KEY,), name, greet)
        return made

    def say(self, name: str, content: bytes = b"x", subject: str = "all") -> dict[str, str]:
        """What each other makes of it: what it hears, or why not."""
        data = self.seals[name].sign(subject, content)
        self.recorded.append((subject, data))
        return {other: self.hear(other, subject, data) for other in self.seals if other != name}

    def hear(self, name: str, subject: str, data: bytes) -> str:
        try:
            if subject.startswith("hello"):
                self.seals[name].greeted(subject, data)
                return "hello"
            return self.seals[name].open(subject, data)[1].decode()
        except RefusedError as error:
            return error.reason


@pytest.fixture
def bus() -> Bus:
    made = Bus()
    for name in "ab":
        made.join(name)
    made.say("a")
    return made


def test_who_is_new_is_believed_from_its_second_message_on_and_both_ways(bus: Bus) -> None:
    assert bus.say("a", b"first") == {"b": "first"}
    assert bus.say("b", b"answer") == {"a": "answer"}
    bus.join("c")
    assert bus.say("c") == {"a": "unproven", "b": "unproven"}
    assert bus.say("c", b"now") == {"a": "now", "b": "now"}
    assert bus.say("a", b"too") == {"b": "too", "c": "too"}


def test_nothing_is_believed_twice_or_on_another_subject_or_of_another_key(bus: Bus) -> None:
    bus.say("a", b"old")
    subject, data = bus.recorded[-1]
    assert bus.hear("b", subject, data) == "replayed"
    assert bus.hear("b", "file", data) == "unsigned"
    assert bus.hear("a", subject, data) == "replayed", "its own"
    bus.join("x", NEXT)
    assert bus.say("x") == {"a": "unsigned", "b": "unsigned"}
    assert bus.hear("b", "all", b"epp\x01" + data) == "unsigned"
    assert bus.hear("b", "all", b"") == "unsigned"


def test_late_messages_of_other_subjects_are_heard(bus: Bus) -> None:
    late = bus.seals["a"].sign("file", b"late")
    assert bus.say("a", b"sooner") == {"b": "sooner"}
    assert bus.hear("b", "file", late) == "late"


def test_all_that_was_recorded_of_a_process_that_is_gone_is_worth_nothing(bus: Bus) -> None:
    for number in range(5):
        bus.say("a", str(number).encode())
    gone = [each for each in bus.recorded if each[0] == "all"]
    del bus.seals["a"]
    bus.join("c")
    bus.say("c")
    heard = [bus.hear("c", *each) for each in bus.recorded if each[0] in ("all", "hello.c")]
    assert set(heard) <= {"unproven", "replayed", "hello"}
    bus.seals["c"].tick()
    assert {bus.hear("c", *each) for each in gone} <= {"unproven"}
    assert {bus.hear("b", *each) for each in gone} <= {"unproven", "replayed"}


def test_many_names_take_bounded_memory_and_greetings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seals, "_GREETINGS", 10)
    bus = Bus()
    bus.join("a")
    for number in range(2 * MAX_PEERS):
        silent = Seal((KEY,), f"n{number}", lambda *_: None)
        reason = bus.hear("a", "all", silent.sign("all", b"x"))
        assert reason == ("unproven" if number < MAX_PEERS else "too many peers")
    sent = len(bus.recorded)
    assert bus.hear("a", "all", silent.sign("all", b"x")) == "too many peers"
    assert len(bus.recorded) == sent == MAX_PEERS, "each is challenged once"
    bus.seals["a"].tick()
    bus.seals["a"].tick()
    bus.join("b")
    bus.say("b")
    assert bus.say("b", b"room again") == {"a": "room again"}
    heard = [bus.hear("a", *each) for each in bus.recorded for _ in range(3) if each[0] == "hello.a"]
    assert "hello" not in heard


def test_two_secrets_are_believed_while_they_are_changed() -> None:
    bus = Bus()
    bus.join("old", KEY, NEXT)
    bus.join("new", NEXT, KEY)
    bus.join("older", KEY)
    bus.say("new")
    bus.say("old")
    assert bus.say("new", b"x") == {"old": "x", "older": "unsigned"}
    assert bus.say("old", b"y") == {"new": "y", "older": "y"}


def test_an_answer_is_to_its_request_alone(bus: Bus) -> None:
    a, b = bus.seals["a"], bus.seals["b"]
    request, other = a.sign("decision", b"id"), a.sign("decision", b"id")
    answer = b.answer(request, b"found")
    assert a.open_answer(request, answer) == b"found"
    for asked, told in ((other, answer), (request, answer[:-1]), (request, b""), (request, request)):
        with pytest.raises(RefusedError):
            a.open_answer(asked, told)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_no_byte_of_a_message_can_be_changed(place: int, change: int) -> None:
    bus = Bus()
    for name in "ab":
        bus.join(name)
    bus.say("a")
    spoilt = bytearray(bus.seals["a"].sign("all", b"content"))
    spoilt[place % len(spoilt)] ^= change
    assert bus.hear("b", "all", bytes(spoilt)) == "unsigned"


@given(st.binary(max_size=200))
def test_what_is_signed_and_no_message_raises_the_one_error(body: bytes) -> None:
    bus = Bus()
    for name in "ab":
        bus.join(name)
    data = bus.seals["a"]._signed(b"all", body)
    for take in (bus.seals["b"].open, bus.seals["b"].greeted):
        with pytest.raises(EppError) as error:
            take("all", data)
        assert isinstance(error.value, RefusedError | UnreadableError)
