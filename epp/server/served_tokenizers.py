"""Tokenizers of the models that engines list: found and loaded in a thread, so that no request waits for it.

Owns which model is counted by what. Names come from engines alone, never from requests.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from epp.config.schema import ModelTokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from epp.config.schema import Tokens
    from epp.server.tokenizers import Counting

log = logging.getLogger(__name__)

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

    def __init__(self, models: dict[str, Counting], tokens: Tokens, mono_s: Callable[[], float]) -> None:
        self._models, self._tokens, self._mono_s = models, tokens, mono_s
        self._by_root: WeakValueDictionary[str, Counting] = WeakValueDictionary()
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

    def _model(self, name: str, root: str) -> Counting:
        """The tokenizer of a model, shared by all that are served from one root."""
        known = self._by_root.get(root)
        if known is not None:
            log.info("tokens of %s are counted by the tokenizer of %s", name, root)
            return known
        # imported here: who estimates needs none of it
        from epp.tokens.load import INSTALL, load_model  # noqa: PLC0415
        from epp.tokens.places import find  # noqa: PLC0415

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
