"""Prompts of an adapter and of its base: apart in the prefix index, together in the cache's capacity."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from epp.apis.openai import ChatParser
from epp.prefix_cache.blocks import BlockHasher
from epp.prefix_cache.index import PrefixIndex
from epp.tokens.estimate import EstimateCounter

if TYPE_CHECKING:
    from epp.apis.types import MeasuredPrompt

HASHER, COUNTER = BlockHasher(b"a secret of sixteen"), EstimateCounter()


def measured(model: str, text: str) -> MeasuredPrompt:
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": text}]}).encode()
    return HASHER.measure(ChatParser().parse(body, {}), COUNTER)


def cached(index: PrefixIndex, prompt: MeasuredPrompt) -> float:
    return float(index.match(prompt).cached_tokens(np.array([0], dtype=np.intp))[0])


def test_an_adapter_shares_no_prefix_with_its_base() -> None:
    index = PrefixIndex()
    base, adapter = measured("chat", "x" * 4000), measured("sql", "x" * 4000)
    index.insert(0, base)
    assert cached(index, base) > 0
    assert cached(index, adapter) == 0
    index.insert(0, adapter)
    assert cached(index, adapter) == pytest.approx(cached(index, base))


def test_both_fill_one_capacity() -> None:
    base, adapter = measured("chat", "x" * 4000), measured("sql", "y" * 4000)
    index = PrefixIndex(capacity_tokens=int(base.prompt_tokens * 1.2))
    index.insert(0, base)
    index.insert(0, adapter)
    assert cached(index, adapter) > 0
    assert cached(index, base) < base.prompt_tokens / 2, "what was used last stays, whosoever it is"
    assert index.tokens(0) <= base.prompt_tokens * 1.2
