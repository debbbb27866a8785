"""Who stores which response: against a plain list of what was said, and within bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from epp.signals import stored_responses
from epp.signals.stored_responses import MOST_AGE_S, StoredResponses

if TYPE_CHECKING:
    import pytest

SLOTS, KEYS = range(3), range(4)
STEPS = st.one_of(
    st.tuples(st.just("store"), st.sampled_from(SLOTS), st.sampled_from(KEYS)),
    st.tuples(st.just("forget"), st.sampled_from(SLOTS), st.just(0)),
    st.tuples(st.just("wait"), st.just(0), st.just(0)),
)


@given(st.lists(STEPS, max_size=30))
def test_a_response_is_where_it_was_stored_last_until_that_process_ends_or_it_is_old(
    steps: list[tuple[str, int, int]],
) -> None:
    stored, told, known, now_s = (
        StoredResponses(),
        list[tuple[int, int]](),
        dict[int, tuple[int, float]](),
        0.0,
    )
    stored.on_store["test"] = lambda slot, key: told.append((slot, key))
    for step, slot, key in steps:
        if step == "wait":
            now_s += MOST_AGE_S / 2
            known = {key: entry for key, entry in known.items() if now_s - entry[1] < MOST_AGE_S}
        elif step == "forget":
            stored.forget(slot)
            known = {key: entry for key, entry in known.items() if entry[0] != slot}
        elif known.get(key, (None, 0.0))[0] == slot:
            stored.store(slot, key, now_s)  # known, and told nobody twice
        else:
            stored.store(slot, key, now_s)
            assert told.pop() == (slot, key)
            known[key] = (slot, now_s)
        assert not told
        found = {key: stored.slot(key, now_s) for key in KEYS}
        assert found == {key: known[key][0] if key in known else None for key in KEYS}
        assert all({*stored.keys(slot)} >= {key for key in KEYS if found[key] == slot} for slot in SLOTS)


def test_beyond_its_number_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_responses, "MOST", 10)
    stored = StoredResponses()
    for key in [*range(10), 0, *range(10, 15)]:
        stored.hold(1, key, 0.0)
    assert len(stored.keys(1)) == 10
    assert [key for key in range(15) if stored.slot(key, 0.0) == 1] == [0, *range(6, 15)]
