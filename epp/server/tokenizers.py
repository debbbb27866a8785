"""Real tokenizers beside the event loop: a count within its time budget, or the estimate and a reason.

Owns the threads and the waiting. A count that comes too late is not lost: its thread goes on, and what it has
tokenized is known at the conversation's next turn. Nothing here raises into the path of a request.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from epp.errors import ConfigError, gather, raise_all
from epp.prompt.arguments import with_first
from epp.prompt.canonical import exact_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Mapping
    from pathlib import Path

    from epp.config.schema import Tokens
    from epp.prompt.types import CountedPrompt, FirstArguments, ParsedRequest, TemplateArguments

log = logging.getLogger(__name__)

#: Counts that may wait for each thread: more would be late anyway.
WAITING_PER_THREAD = 16
#: Why the estimate was used: no thread was free, none was done in time, the chat template refused or there is
#: none, the prompt is no chat and no text, the tokenizer failed.
REASONS = ("busy", "late", "template", "content", "error")


class Counting(Protocol):
    """What counts one model's prompts (`epp.tokenizer.model.TokenizerModel`)."""

    #: Arguments that its chat template puts before the chat.
    first_arguments: FirstArguments

    def count(self, canonical: bytes, block_bytes: int, arguments: TemplateArguments = ()) -> CountedPrompt:
        """Tokens of a prompt, rendered with these arguments, and how they spread over its blocks."""
        ...


class Count:
    """A prompt's tokens, once they are awaited, or None when the estimate has to do.

    Args:
        job: counts.
        wait: waits for it within its budget.
    """

    def __init__(
        self,
        job: asyncio.Future[CountedPrompt],
        wait: Callable[[asyncio.Future[CountedPrompt]], Coroutine[Any, Any, CountedPrompt | None]],
    ) -> None:
        self._job, self._wait = job, wait

    def __await__(self) -> Generator[Any, None, CountedPrompt | None]:
        """Wait; whoever is cancelled meanwhile gives the count up."""
        return self._wait(self._job).__await__()

    def cancel(self) -> None:
        """Nobody waits, or will: a count that has not begun never does."""
        self._job.cancel()


class Tokenizers:
    """The tokenizers of all configured models.

    Args:
        models: what counts, by public model name.
        budgets_ms: longest wait by model.
        block_bytes: bytes of canonical prompt per block.
        threads: threads that tokenize.
        on_estimate: told the reason, one of `REASONS`, when the estimate has to do.
        not_countable: the error by which a model says that it cannot count a prompt, with its reason.
    """

    def __init__(
        self,
        models: Mapping[str, Counting],
        budgets_ms: Mapping[str, float],
        *,
        block_bytes: int,
        threads: int,
        on_estimate: Callable[[str], None],
        not_countable: tuple[type[Exception], ...] = (),
    ) -> None:
        self._models, self._block_bytes = models, block_bytes
        self._budgets_s = {name: budget_ms / 1000.0 for name, budget_ms in budgets_ms.items()}
        self._on_estimate, self._not_countable = on_estimate, not_countable
        self._limit, self._running = threads * (1 + WAITING_PER_THREAD), 0
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tokenizer") if models else None
        self._failed: set[str] = set()

    def with_first(self, request: ParsedRequest) -> ParsedRequest:
        """The request, told apart by arguments that its model's template puts before the chat."""
        model = self._models.get(request.model)
        return request if model is None else with_first(request, model.first_arguments)

    def start(self, request: ParsedRequest) -> Count | None:
        """Begin to count; None at once when the model has no tokenizer here or there is nothing to count."""
        model = self._models.get(request.model)
        if model is None or self._threads is None or not request.canonical:
            return None
        if exact_tokens(request.canonical) is not None:
            return None
        if self._running >= self._limit:
            self._on_estimate("busy")
            return None
        self._running += 1
        loop = asyncio.get_running_loop()
        job = self._threads.submit(
            model.count, request.canonical, self._block_bytes, request.template_arguments
        )
        job.add_done_callback(lambda _: self._ended(loop))
        return Count(asyncio.wrap_future(job), partial(self._within_budget, request.model))

    def _ended(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.call_soon_threadsafe(self._end)
        except RuntimeError:  # the loop has closed: nobody counts any more
            return

    def _end(self) -> None:
        self._running -= 1

    async def _within_budget(self, name: str, job: asyncio.Future[CountedPrompt]) -> CountedPrompt | None:
        try:
            # Cancels the job when the time is over or the client has gone: one that waits is never begun.
            # Python 3.11's `wait_for` takes no notice of who goes in the moment in which it is done.
            async with asyncio.timeout(self._budgets_s[name]):
                return await job
        except TimeoutError:
            self._on_estimate("late")
        except self._not_countable as error:
            self._on_estimate(str(error))
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a panic in an encoder's Rust is no Exception
            self._on_estimate("error")
            if name not in self._failed:  # one word in the log for each model, the metric counts the rest
                self._failed.add(name)
                log.exception("the tokenizer of %s failed; its prompts are estimated when it does", name)
        return None

    def close(self) -> None:
        """Begin no more; what runs ends by itself."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def load_tokenizers(
    tokens: Tokens, base: Path, source: str, *, block_bytes: int, on_estimate: Callable[[str], None]
) -> Tokenizers:
    """The tokenizers that a configuration names, loaded and proven.

    Raises:
        ConfigError: a package or a file is missing, or cannot be used.
    """
    models: dict[str, Counting] = {}
    not_countable: tuple[type[Exception], ...] = ()
    if tokens.models:
        from epp.tokenizer.load import load_model  # noqa: PLC0415  # optional packages, only when asked for

        errors: list[ConfigError] = []
        for name, section in tokens.models.items():
            with gather(errors):
                models[name] = load_model(name, section, base, source)
        raise_all(errors)
        from epp.tokenizer.model import NotCountableError  # noqa: PLC0415  # as above

        not_countable = (NotCountableError,)
        log.info("tokenizers: %s", ", ".join(models))
    return Tokenizers(
        models,
        {name: section.budget_ms for name, section in tokens.models.items()},
        block_bytes=block_bytes,
        threads=tokens.threads,
        on_estimate=on_estimate,
        not_countable=not_countable,
    )
