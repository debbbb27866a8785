from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from epp_lab.sim.kv_cache import KvCache


def test_the_least_recently_used_path_goes_first_and_its_leaf_before_its_root() -> None:
    kv = KvCache(60, 10)
    for path in ([1, 2, 3], [4, 5, 6]):
        kv.hold(path)
        kv.release(path)
    kv.hold([1, 2])  # used again, so 4-5-6 is now older; 3 was not touched
    kv.release([1, 2])
    kv.make_room(10)
    assert kv.match([1, 2, 3])[0] == 2
    kv.make_room(20)
    assert kv.match([4, 5, 6])[0] == 2
    kv.make_room(40)
    assert (kv.match([4, 5, 6])[0], kv.match([1, 2])[0]) == (0, 2)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.booleans()), max_size=60))
def test_tokens_are_conserved_and_children_never_outlive_parents(steps: list[tuple[int, int, bool]]) -> None:
    kv = KvCache(100, 10)
    held: list[list[int]] = []
    paths = [[family * 100 + depth for depth in range(5)] for family in range(4)]
    for family, depth, hold in steps:
        if hold:
            path = paths[family][:depth]
            present, _ = kv.match(path)
            needed = (depth - present) * 10
            idle_outside = kv.idle_tokens - kv.match(path)[1] * 10
            if kv.used_tokens + needed - 100 > idle_outside:
                continue
            kv.hold(path[:present])
            kv.make_room(needed)
            kv.hold(path[present:])
            held.append(path)
        elif held:
            kv.release(held.pop(family % len(held)))
        assert kv.held_tokens + kv.idle_tokens == kv.used_tokens <= 100
        assert kv.held_tokens == 10 * len({block for path in held for block in path})
        for path in paths:
            present, _ = kv.match(path)
            assert all(kv.match([block]) == (0, 0) for block in path[present:])
