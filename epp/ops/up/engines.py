"""Engines by URL: what answers there, and the endpoints file of those that are up."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import msgspec

from epp.apis.listed_models import parse_models
from epp.config.address import normalise_address
from epp.config.pool import EndpointSpec, dump_pool
from epp.errors import ConfigError
from epp.feeds.files import replace_file
from epp.feeds.poll import target_of
from epp.ops.doctor.fetch import ask_endpoint, ask_metrics
from epp.signals.metrics_text import parse_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import aiohttp

    from epp.config.schema import Scrape

#: Time between two looks at an engine.
LOOK_S = 2.0
#: Engines by the name of their metrics, else by the owner of their models.
_NAMES = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "llama.cpp": "llama.cpp",
    "llamacpp": "llama.cpp",
    "trtllm": "TensorRT-LLM",
    "tensorrt_llm": "TensorRT-LLM",
    "triton": "Triton",
    "tgi": "TGI",
    "lmdeploy": "LMDeploy",
    "dynamo": "Dynamo",
}
_SHOWS_METRICS = {
    "SGLang": "--enable-metrics",
    "llama.cpp": "--metrics",
    "TensorRT-LLM": "enable_iter_perf_stats and return_perf_metrics",
}
_REFUSED = (401, 403)
_SCHEMES = {"http": 80, "https": 443}


class Look(NamedTuple):
    """What one look at an engine shows.

    Attributes:
        spec: its entry of the endpoints file, None while it is not up.
        words: which engine it is and what it serves, or why it is not up.
    """

    spec: EndpointSpec | None
    words: str


def spec_of(url: str) -> EndpointSpec:
    """Read an engine's URL, such as ``http://host:8000`` or ``http://host/llm``, with or without ``/v1``.

    Raises:
        ConfigError: it is none.
    """
    problem, fix = f"{url!r} is not an engine's address", "e.g. http://127.0.0.1:8000"
    try:
        scheme, netloc, path, query, _ = parts = urlsplit(url if "://" in url else f"http://{url}")
        address = normalise_address(netloc if parts.port else f"{netloc}:{_SCHEMES.get(scheme, 0)}")
    except ValueError as error:
        raise ConfigError("<arguments>", "URL", problem, fix) from error
    base_path = path.rstrip("/").removesuffix("/v1")
    if scheme not in _SCHEMES or query or "/v1" in base_path or not re.fullmatch("[!-~]*", base_path):
        raise ConfigError("<arguments>", "URL", problem, fix)
    return EndpointSpec(address=address, base_path=base_path, tls=scheme == "https")


async def look(http: aiohttp.ClientSession, spec: EndpointSpec, scrape: Scrape) -> Look:
    """Ask an engine for its models and its metrics.

    Args:
        http: the client.
        spec: its address.
        scrape: path of the metrics where they are not to be found, and the key.
    """
    target = target_of(spec.address, spec, scrape)
    answer, page = await asyncio.gather(ask_endpoint(http, target, "/v1/models"), ask_metrics(http, target))
    key = "another key" if scrape.bearer_token_file else "a key"
    if answer.status in _REFUSED:
        return Look(None, f"wants {key}: --key-env NAME, an environment variable that holds it")
    if found := re.search(r"certificate verify failed: ([^(]*) \(", answer.problem):
        fix = "--ca-file FILE names who signed it, --insecure takes any"
        return Look(None, f"shows a certificate that does not pass, {found[1]}: {fix}")
    listed = parse_models(answer.body) if answer.status == 200 else {}
    if not listed:
        problem = "lists no models" if answer.status == 200 else answer.problem
        return Look(None, f"is not up, and is taken in once it is: {problem}")
    adapters = [name for name, model in listed.items() if model.parent in listed]
    models = [name for name in listed if name not in adapters]
    kind = parse_metrics(page.body).engine if page.status == 200 else ""
    name = _NAMES.get(kind or next(iter(listed.values())).owner or "", "an OpenAI server")
    words = f"is {name} and serves {', '.join(listed)}"
    if page.status in _REFUSED:
        words += f"; its metrics want {key}: --key-env NAME"
    elif not kind:
        flag = _SHOWS_METRICS.get(name)
        words += f"; its queue stays unknown{f' without {flag}' if flag else ''}"
    return Look(msgspec.structs.replace(spec, models=models, adapters=adapters), words)


class Engines:
    """Keeps the endpoints file: engines that have answered, as they answered last.

    Args:
        specs: the engines.
        scrape: as of `look`.
        file: the endpoints file.
        say: called with what an engine shows, each time that it shows something else.

    Attributes:
        up: entries of the file, by address.
        looked: set once every engine was looked at.
    """

    def __init__(
        self, specs: Iterable[EndpointSpec], scrape: Scrape, file: Path, say: Callable[[str], None]
    ) -> None:
        self._words = {spec.address: "" for spec in specs}
        self._scrape, self._file, self._say = scrape, file, say
        self.up: dict[str, EndpointSpec] = {}
        self.looked = asyncio.Event()
        self._write()

    @property
    def missing(self) -> list[str]:
        """Addresses of engines that have not answered yet."""
        return [address for address in self._words if address not in self.up]

    async def follow(self, http: aiohttp.ClientSession, spec: EndpointSpec) -> None:
        """Look at an engine for ever. One that is gone stays in the file: the picker ejects it meanwhile."""
        address = spec.address
        while True:
            seen, words = await look(http, spec, self._scrape)
            if words != self._words[address]:
                self._words[address] = words
                self._say(f"{address} {words}")
            if seen is not None and seen != self.up.get(address):
                self.up[address] = seen
                self._write()
            if all(self._words.values()):
                self.looked.set()
            await asyncio.sleep(LOOK_S)

    def _write(self) -> None:
        replace_file(self._file, dump_pool(list(self.up.values())))
