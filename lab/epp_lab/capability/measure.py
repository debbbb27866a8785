"""`epp capability measure`: ask engines key-value lookups, and keep the checked answers.

The file of answers is all the state there is: a line is added as an answer is checked, and what the file
holds is not asked again. So a measurement that was stopped goes on where it was. Each model is asked in order
of length; its first error, such as a prompt that is too long for it, ends its questions and no other's.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from epp.errors import EppError
from epp.records.files import DAMAGED
from epp_lab.capability.questions import WORDINGS, question
from epp_lab.capability.results import Row, decode_rows
from epp_lab.compare.load import add_api_key, api_key_headers
from epp_lab.compare.plan import number_from
from epp_lab.progress import progress

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from io import FileIO

_TIMEOUT_S = 600.0
#: Length of the question that finds how many bytes a model's token has.
_PROBE_TOKENS = 1024
_ERROR_CHARS = 300


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    add = parser.add_argument
    add("urls", nargs="+", metavar="[MODEL=]URL", help="OpenAI address; without MODEL all that it lists")
    add("--languages", nargs="+", choices=WORDINGS, default=["en", "ja", "zh"], help="%(choices)s")
    lengths = [4096, 8192, 16_384, 32_768, 65_536]
    add("--lengths", nargs="+", type=int, default=lengths, help="tokens of prompt and answer (%(default)s)")
    add("--questions", type=int, default=100, help="of each language and length (%(default)s)")
    add("--seed", type=int, default=0, help="of the questions (%(default)s)")
    add("--max-tokens", type=int, default=256, help="of an answer, thoughts included (%(default)s)")
    add("--at-once", type=number_from(1), default=4, help="questions to each model (%(default)s)")
    add_api_key(add)
    add("--out", type=Path, default=Path("answers.jsonl"), help="file that is added to (%(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Ask what the file lacks; 1 when a model could not be asked everything.

    Raises:
        EppError: an address lists no model, or the file holds something else.
    """
    problems = asyncio.run(_measure(arguments))
    for problem in problems:
        print(f"epp: {problem}; the same command goes on", file=sys.stderr)
    return int(bool(problems))


async def _measure(arguments: argparse.Namespace) -> list[str]:
    """Ask all models at once, and return the errors that ended some."""
    out, headers = arguments.out, api_key_headers(arguments.bearer_token_file)
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as http:
        urls: dict[str, str] = {}
        for text in arguments.urls:
            name, _, url = text.rpartition("=")
            base = url.rstrip("/").removesuffix("/v1")
            names = [name] if name else await _fetch(http, f"{base}/v1/models", _listed)
            urls = dict.fromkeys(names, base) | urls
        with out.open("ab", buffering=0) as file, progress(sys.stderr) as step:
            whole, end, torn = out.read_bytes().rpartition(b"\n")
            if torn and not end:
                raise EppError(f"{out}: holds no line of answers")
            rows = decode_rows(whole, out)
            file.truncate(len(whole + end))  # half a line is what a full disk, or a dying host, leaves
            asking = _Asking(http, arguments, file, step, {(row.model, row.question) for row in rows})
            problems = await asyncio.gather(*(asking.ask(*each) for each in urls.items()))
    print(f"{len(asking.answered)} answers in {out}, {asking.cut} new ones cut at --max-tokens")
    return [problem for problem in problems if problem]


def _listed(found: Any) -> list[str]:
    return [model["id"] for model in found["data"]]


async def _fetch(
    http: aiohttp.ClientSession, url: str, read: Callable[[Any], Any], body: object = None
) -> Any:
    """Return what is read of an answer.

    Args:
        http: the client.
        url: address.
        read: given the decoded JSON; LookupError, TypeError and ValueError mean that it lacks something.
        body: what is posted, None for GET.

    Raises:
        EppError: it is an error, or lacks something.
    """
    try:
        async with http.request("POST" if body else "GET", url, json=body) as response:
            content = await response.read()
            if response.status == 200:
                return read(msgspec.json.decode(content))
    except (aiohttp.ClientError, OSError, LookupError, TypeError, ValueError, *DAMAGED) as error:
        raise EppError(f"{url}: {type(error).__name__}: {error}") from error
    raise EppError(f"{url}: HTTP {response.status}: {content.decode(errors='replace')[:_ERROR_CHARS]}")


@dataclass
class _Asking:
    """All that is asked.

    Attributes:
        http: the client.
        arguments: of the command.
        file: takes the answers.
        step: called with a model, its answers, and all that are wanted of it.
        answered: model and question of each answer in the file.
        cut: new answers that ended at their limit.
    """

    http: aiohttp.ClientSession
    arguments: argparse.Namespace
    file: FileIO
    step: Callable[[str, int, int], None]
    answered: set[tuple[str, str]]
    cut: int = 0

    async def ask(self, model: str, url: str) -> str:
        """Ask a model what it has not answered, and return the error that ended it, ``""`` for none."""
        asks = self.arguments
        wanted = [
            (f"{asks.seed}-{number}-{language}-{tokens}", language, tokens)
            for tokens in sorted(asks.lengths)
            for number in range(asks.questions)
            for language in asks.languages
        ]
        left = deque(each for each in wanted if (model, each[0]) not in self.answered)

        async def work(token_bytes: float) -> None:
            while left:
                name, language, tokens = left.popleft()
                asked = question(name, language, tokens - asks.max_tokens, token_bytes)
                try:
                    prompt_tokens, text, is_cut = await self._answer(model, url, asked.prompt)
                except EppError:
                    left.clear()
                    raise
                row = Row(name, model, language, prompt_tokens, asked.value in text)
                line = msgspec.json.encode(row) + b"\n"
                while line:  # a full disk takes a part, and the next write says why
                    line = line[self.file.write(line) :]
                self.answered.add((model, name))
                self.cut += is_cut
                self.step(model, len(wanted) - len(left), len(wanted))

        try:
            if left:
                probe = question("probe", "en", _PROBE_TOKENS).prompt
                token_bytes = len(probe) / (await self._answer(model, url, probe))[0]
                working = [work(token_bytes) for _ in range(asks.at_once)]
                for error in filter(None, await asyncio.gather(*working, return_exceptions=True)):
                    raise error
        except EppError as error:
            return f"{model}: {error}"
        return ""

    async def _answer(self, model: str, url: str, prompt: str) -> Any:
        """Return the prompt's tokens, the answer, and whether it is cut."""
        body = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": self.arguments.max_tokens,
        }

        def read(found: Any) -> tuple[int, str, bool]:
            choice, tokens = found["choices"][0], int(found["usage"]["prompt_tokens"])
            if tokens < 1:
                raise ValueError(f"usage.prompt_tokens is {tokens}")
            return tokens, choice["message"]["content"] or "", choice["finish_reason"] == "length"

        return await _fetch(self.http, f"{url}/v1/chat/completions", read, body)
