"""Real tokenizers beside the event loop: a count within its time budget, or the estimate and a reason.

Owns the threads that count and the waiting. A count that comes too late is not lost: its thread goes on, and
what it has tokenized is known at the next turn. Nothing here raises into the path of a request.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from epp.apis.arguments import with_first
from epp.apis.canonical import exact_tokens
from epp.apis.types import NotCountableError
from epp.errors import ConfigError, gather, raise_all

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Mapping
    from pathlib import Path

    from epp.apis.types import CountedPrompt, FirstArguments, ParsedRequest, TemplateArguments
    from epp.config.schema import Tokens

log = logging.getLogger(__name__)

#: Threads that count.
THREADS = 2
#: Counts that may wait for each thread: more would be late anyway.
WAITING_PER_THREAD = 16
#: Why the estimate was used: no thread was free, none was done in time, the chat template refused or there is
#: none, the prompt is no chat and no text, the tokenizer failed.
REASONS = ("busy", "late", "template", "content", "error")


class Counting(Protocol):
    """What counts one model's prompts (`epp.tokens.model.TokenizerModel`)."""

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
    """The tokenizers of models.

    Args:
        models: what counts, by public model name; some may come later.
        budget_ms: longest wait.
        block_bytes: bytes of canonical prompt per block.
        threads: threads that tokenize.
        on_estimate: told the reason, one of `REASONS`, when the estimate has to do.
    """

    def __init__(
        self,
        models: Mapping[str, Counting],
        budget_ms: float,
        *,
        block_bytes: int,
        threads: int = THREADS,
        on_estimate: Callable[[str], None],
    ) -> None:
        self._models, self._block_bytes = models, block_bytes
        self._budget_s = budget_ms / 1000.0
        self._on_estimate = on_estimate
        self._limit, self._running = threads * (1 + WAITING_PER_THREAD), 0
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tokenizer")
        self._failed: set[str] = set()

    def with_first(self, request: ParsedRequest) -> ParsedRequest:
        """The request, told apart by arguments that its model's template puts before the chat."""
        model = self._models.get(request.model)
        return request if model is None else with_first(request, model.first_arguments)

    def start(self, request: ParsedRequest) -> Count | None:
        """Begin to count; None at once when the model has no tokenizer here or there is nothing to count."""
        model = self._models.get(request.model)
        if model is None or not request.canonical:
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
            async with asyncio.timeout(self._budget_s):
                return await job
        except TimeoutError:
            self._on_estimate("late")
        except NotCountableError as error:
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
        self._threads.shutdown(wait=False, cancel_futures=True)


def load_models(tokens: Tokens, base: Path, source: str) -> dict[str, Counting]:
    """Load the tokenizers that a configuration names.

    Raises:
        ConfigError: a package or a file is missing, or cannot be used.
    """
    models: dict[str, Counting] = {}
    errors: list[ConfigError] = []
    for name, section in tokens.models.items():
        with gather(errors):
            from epp.tokens.load import load_model  # noqa: PLC0415  # optional packages, only when asked for

            models[name] = load_model(name, section, base, source)
    raise_all(errors)
    return models
