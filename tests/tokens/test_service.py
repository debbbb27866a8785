"""Counts beside the event loop: in time, too late, broken, too many; and in the path of a request."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import TYPE_CHECKING, cast

from epp.apis.rendering import PAST_REASONING, Rendering
from epp.apis.types import NotCountableError, ParsedRequest, TokenCount
from epp.request.tokenizers import WAITING_PER_THREAD, Tokenizers
from epp.tokens.optional_parts import OptionalParts
from tests.kit.logs import own_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from epp.apis.types import TemplateArguments
    from epp.tokens.model import TokenizerModel

import pytest


class PanicError(BaseException):
    """What a panic in Rust is told as: no `Exception`."""


class Model:
    """Counts when it is let."""

    rendering = Rendering({"thinking": (False,)}, dropped=frozenset({PAST_REASONING}))

    def __init__(self) -> None:
        self.let = threading.Event()
        self.let.set()
        self.fails: BaseException | None = None
        self.begun = 0

    def count(self, canonical: bytes, _block_bytes: int, arguments: TemplateArguments = ()) -> TokenCount:
        self.begun += 1
        self.arguments = arguments
        self.let.wait(20)
        if self.fails is not None:
            raise self.fails
        return TokenCount(len(canonical), ())


class Bench:
    def __init__(self, budget_ms: float) -> None:
        self.model, self.reasons = Model(), Counter[str]()
        self.tokenizers = Tokenizers(
            {"m": cast("TokenizerModel", self.model)},
            budget_ms,
            optional=OptionalParts(),
            block_bytes=256,
            threads=1,
            on_estimate=lambda reason: self.reasons.update([reason]),
        )

    async def ask(self, canonical: bytes = b"\xffPtext", model: str = "m") -> TokenCount | None:
        pending = self.tokenizers.start(ParsedRequest("api", model, canonical, False, None, "", "", False))
        return None if pending is None else await pending.result()


@pytest.fixture
def patient() -> Iterator[Bench]:
    bench = Bench(budget_ms=20_000)
    yield bench
    bench.model.let.set()
    bench.tokenizers.close()


@pytest.fixture
def hasty() -> Iterator[Bench]:
    bench = Bench(budget_ms=1)
    yield bench
    bench.model.let.set()
    bench.tokenizers.close()


async def test_a_count_in_time_is_used(patient: Bench) -> None:
    assert await patient.ask() == TokenCount(6, ())
    assert not patient.reasons


async def test_a_late_count_is_estimated_and_counted(hasty: Bench) -> None:
    hasty.model.let.clear()
    assert await hasty.ask() is None
    assert hasty.reasons == {"late": 1}


@pytest.mark.parametrize("fails", [RuntimeError("broken"), PanicError("Regex search error")])
async def test_a_broken_tokenizer_is_estimated_and_logged_once(
    patient: Bench, caplog: pytest.LogCaptureFixture, fails: BaseException
) -> None:
    patient.model.fails = fails
    assert [await patient.ask(), await patient.ask()] == [None, None]
    assert patient.reasons == {"error": 2}
    assert len(own_lines(caplog)) == 1


async def test_a_prompt_that_cannot_be_counted_names_its_reason(patient: Bench) -> None:
    patient.model.fails = NotCountableError("template")
    assert await patient.ask() is None
    assert patient.reasons == {"template": 1}


async def test_too_many_are_estimated_at_once_and_the_rest_goes_on(patient: Bench) -> None:
    patient.model.let.clear()
    limit = WAITING_PER_THREAD + 1
    waiting = [asyncio.ensure_future(patient.ask()) for _ in range(limit)]
    await asyncio.sleep(0)
    assert await patient.ask() is None
    assert patient.reasons == {"busy": 1}
    patient.model.let.set()
    assert all(await asyncio.gather(*waiting))
    assert await patient.ask() is not None


async def test_a_client_that_goes_takes_its_count_with_it(patient: Bench) -> None:
    patient.model.let.clear()
    first = asyncio.ensure_future(patient.ask())
    second = asyncio.ensure_future(patient.ask())
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait([second])
    patient.model.let.set()
    assert await first is not None
    assert await patient.ask() is not None
    assert patient.model.begun == 2
