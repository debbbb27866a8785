"""Real tokenizers beside the event loop: a count within its time budget, or the estimate and a reason.

Owns the threads that count, the waiting, and which model is counted by what. A count that comes too late is
not lost: its thread goes on, and what it has tokenized is known at the next turn. Tokenizers of models that
engines list are found and loaded in a thread; their names come from engines alone, never from requests.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from msgspec.structs import replace

from epp.apis.canonical import exact_tokens
from epp.apis.rendering import UNCHOSEN_TOOLS, by_name
from epp.apis.types import NotCountableError
from epp.config.schema import ModelTokenizer
from epp.errors import ConfigError, gather, raise_all

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from epp.apis.rendering import Rendering
    from epp.apis.types import ParsedRequest, TokenCount
    from epp.config.schema import Tokens
    from epp.tokens.model import TokenizerModel
    from epp.tokens.optional_parts import OptionalParts


log = logging.getLogger(__name__)


#: Threads that count.
THREADS = 2
#: Counts that may wait for each thread: more would be late anyway.
WAITING_PER_THREAD = 16


class Count:
    """A prompt's tokens, once they are waited for.

    Args:
        job: counts.
        wait: waits for it within its budget.
    """

    def __init__(
        self,
        job: asyncio.Future[TokenCount],
        wait: Callable[[asyncio.Future[TokenCount]], Coroutine[Any, Any, TokenCount | None]],
    ) -> None:
        self._job, self._wait = job, wait

    def result(self) -> Coroutine[Any, Any, TokenCount | None]:
        """Wait for them; None when the estimate has to do. Cancelled meanwhile, it gives the count up."""
        return self._wait(self._job)

    def cancel(self) -> None:
        """Give the count up: one that has not begun never does."""
        self._job.cancel()


class Tokenizers:
    """The tokenizers of models.

    Args:
        models: what counts, by public model name; some may come later.
        budget_ms: longest wait.
        block_bytes: bytes of canonical prompt per block.
        threads: threads that tokenize.
        on_estimate: called with the reason, one of `epp.metrics.table.REASONS`, when the estimate has to do.
        optional: what engines leave out.

    Attributes:
        tells_ids: prompts are looked up by their token ids, so they are told.
    """

    def __init__(
        self,
        models: Mapping[str, TokenizerModel],
        budget_ms: float,
        *,
        optional: OptionalParts,
        block_bytes: int,
        threads: int = THREADS,
        on_estimate: Callable[[str], None],
    ) -> None:
        self._models, self._block_bytes = models, block_bytes
        self._budget_s = budget_ms / 1000.0
        self._on_estimate, self._optional = on_estimate, optional
        self._limit, self._running = threads * (1 + WAITING_PER_THREAD), 0
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tokenizer")
        self._failed: set[str] = set()
        self.tells_ids = False

    def rendering(self, model: str) -> Rendering:
        """Tell how a model's prompts are rendered: by its template, else by its name and what was learned."""
        found, dropped = self._models.get(model), self._optional.dropped(model)
        if found is None or found.rendering is None:
            known = by_name(model)
        else:
            known = found.rendering
            # Of the choice of tools the engine decides, not the template.
            dropped = known.dropped | (dropped & {UNCHOSEN_TOOLS})
        return replace(known, dropped=dropped) if dropped != known.dropped else known

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
        if self.tells_ids:
            model.keeps_ids = True
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

    async def _within_budget(self, name: str, job: asyncio.Future[TokenCount]) -> TokenCount | None:
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


def load_models(tokens: Tokens, base: Path, source: str) -> dict[str, TokenizerModel]:
    """Load the tokenizers that a configuration names.

    Raises:
        ConfigError: a package or a file is missing, or cannot be used.
    """
    models: dict[str, TokenizerModel] = {}
    errors: list[ConfigError] = []
    for name, section in tokens.models.items():
        with gather(errors):
            from epp.tokens.load import load_model  # noqa: PLC0415  # optional packages, only when asked for

            models[name] = load_model(name, section, base, source)
    raise_all(errors)
    return models


#: Tokenizers in memory, some 100 MB each with large vocabularies.
MAX_TOKENIZERS = 8
#: Models that are remembered.
MAX_MODELS = 256
#: How soon what was not found is looked for again, and a model that no engine lists any more is forgotten.
RETRY_S, FORGET_S = 300.0, 600.0


@dataclass
class _Served:
    """A model that is served.

    Attributes:
        root: what it is served from, a hub id or a folder.
        listed_s: when an engine last listed it.
        retry_s: when its tokenizer is looked for again.
        reason: why its tokens are estimated.
    """

    root: str
    listed_s: float
    retry_s: float = 0.0
    reason: str = ""


class ServedTokenizers:
    """Finds the tokenizers of served models.

    Args:
        models: what counts, by public model name: those that the configuration names; found ones are added.
        tokens: where tokenizers may come from.
        mono_s: the time.
    """

    def __init__(
        self, models: dict[str, TokenizerModel], tokens: Tokens, mono_s: Callable[[], float]
    ) -> None:
        self._models, self._tokens, self._mono_s = models, tokens, mono_s
        self._by_root: WeakValueDictionary[str, TokenizerModel] = WeakValueDictionary()
        self._served: dict[str, _Served] = {}
        self._wanted: SimpleQueue[tuple[str, _Served]] = SimpleQueue()
        self._thread: Thread | None = None

    @property
    def counted_by(self) -> dict[str, str]:
        """``tokenizer`` or ``estimate``, by public model name."""
        names = {**self._tokens.models, **self._served}
        return {name: "tokenizer" if name in self._models else "estimate" for name in names}

    def look_for(self, roots: Mapping[str, str]) -> None:
        """Look for the tokenizers of served models that have none yet.

        Args:
            roots: what each is served from, a hub id or a folder, by public model name.
        """
        now_s = self._mono_s()
        for name in [name for name, served in self._served.items() if served.listed_s < now_s - FORGET_S]:
            del self._served[name]
            self._models.pop(name, None)
        for name, root in roots.items():
            if name in self._tokens.models or (name not in self._served and len(self._served) >= MAX_MODELS):
                continue
            served = self._served.setdefault(name, _Served(root, now_s))
            if served.root == root:
                served.listed_s = now_s
            if name not in self._models and now_s >= served.retry_s:
                served.retry_s = now_s + RETRY_S
                self._start(name, served)

    def _start(self, name: str, served: _Served) -> None:
        if self._tokens.tokenizer == "estimate":
            self._report(name, served, "tokens.tokenizer is estimate")
            return
        self._wanted.put((name, served))
        if self._thread is None:
            self._thread = Thread(target=self._work, name="tokenizers", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            name, served = self._wanted.get()
            try:
                model = self._model(name, served.root)
            except BaseException as error:  # noqa: BLE001  # libraries raise anything, a panic in Rust no Exception
                self._report(name, served, next(iter(str(error).splitlines()), type(error).__name__))
                continue
            if self._served.get(name) is served:
                self._models[name] = model
                served.reason = ""

    def _report(self, name: str, served: _Served, reason: str) -> None:
        """Say once why a model's tokens are estimated."""
        if served.reason != reason:
            served.reason = reason
            log.info("tokens of %s are estimated: %s", name, reason)

    def _model(self, name: str, root: str) -> TokenizerModel:
        """Load the tokenizer of a model, shared by all that are served from one root."""
        known = self._by_root.get(root)
        if known is not None:
            log.info("tokens of %s are counted by the tokenizer of %s", name, root)
            return known
        from epp.tokens.load import INSTALL, find, load_model  # noqa: PLC0415  # not for estimates

        if len(self._by_root) >= MAX_TOKENIZERS:
            raise LookupError(f"{MAX_TOKENIZERS} tokenizers are loaded already")
        try:
            found = find((root, name), may_download=self._tokens.tokenizer == "download")
        except ImportError as error:
            raise LookupError(f"{error} ({INSTALL})") from error
        except Exception as error:  # the library passes its HTTP client's errors on
            raise LookupError(f"the hub gives no tokenizer of {root}: {error}") from error
        if found is None:
            raise LookupError(
                f"no tokenizer of {root} on this machine, neither a folder nor in the Hugging Face cache"
                f" (name a folder in tokens.models.{name}.source, or set tokens.tokenizer: download)"
            )
        model = load_model(name, ModelTokenizer(source=str(found)), Path(), "<auto>")
        self._by_root[root] = model
        return model
