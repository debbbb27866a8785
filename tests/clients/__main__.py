"""GuideLLM's and AIPerf's figures beside the picker's records of the same run: ``make test-clients``.

    python -m tests.clients FOLDER...       # where `tests/clients/install.sh` put each

Each converses with the demo's three regions: 20 conversations of three turns, four at a time. Both ask a hub for
the model's tokenizer unless they get a folder. Ends with 1 when their counts of requests or tokens differ from ours.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from epp.errors import EppError
from epp.records.files import read_records
from epp.records.schema import join
from epp_lab.compare.stats import percentile
from epp_lab.demo.stack import MODEL, REGIONS, Stack
from tests.kit.tokenizers import folder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CONVERSATIONS, TURNS, AT_ONCE, PROMPT_TOKENS, ANSWER_TOKENS = 20, 3, 4, 512, 64
REQUESTS = CONVERSATIONS * TURNS
TIME_LIMIT_S = 240.0
HEAD = ("", "requests", "prompt tokens", "cached", "answer tokens", "TTFT p50", "p95", "E2E p50", "p95")


class Figures(NamedTuple):
    """One run; None is not said. Counts are sums; times are percentiles in ms."""

    requests: int
    prompt_tokens: int
    cached_tokens: int | None
    answer_tokens: int
    ttft_p50: float
    ttft_p95: float
    e2e_p50: float
    e2e_p95: float


def recorded(records: Path) -> Figures:
    """What the picker has on record, beside scrapes and lists of models."""
    requests = [one for one in join(read_records(records)) if one.decision["api"] == "openai-chat"]
    outcomes = [one.outcome for one in requests if one.outcome is not None and one.outcome["status"] == 200]

    def all_of(fact: str) -> list[Any]:
        return [outcome[fact] for outcome in outcomes]

    counts = [sum(all_of(f"{name}_tokens")) for name in ("prompt", "cached", "completion")]
    times = [percentile(all_of(fact), rank) for fact in ("ttft_ms", "e2e_ms") for rank in (50, 95)]
    return Figures(len(outcomes), *counts, *times)


def guidellm_words(url: str, out: Path) -> list[str]:
    """Its command; tokens of turns are drawn a little apart."""
    tokens = f"prompt_tokens={PROMPT_TOKENS},output_tokens={ANSWER_TOKENS},turns={TURNS}"
    return [
        "guidellm",
        "run",
        *("--backend", f"kind=openai_http,target={url},model={MODEL}"),
        *("--profile", f"kind=concurrent,streams={AT_ONCE}"),
        *("--constraint", f"kind=max_requests,count={REQUESTS}"),
        *("--tokenizer", f"kind=hf_auto,model={folder('bytes')}"),
        *("--data", f"kind=synthetic_text,{tokens}"),
        *("--output", f"kind=json,path={out / 'guidellm.json'}"),
        "--disable-progress",
    ]


def guidellm_figures(out: Path) -> Figures:
    """What it reports."""
    (run,) = json.loads((out / "guidellm.json").read_text())["benchmarks"]
    metrics = run["metrics"]
    ttft, e2e, prompt, answer = (
        metrics[name]["successful"]
        for name in ("time_to_first_token_ms", "request_latency", "prompt_token_count", "output_token_count")
    )
    ttft_ms, e2e_s = ([one["percentiles"][rank] for rank in ("p50", "p95")] for one in (ttft, e2e))
    counts = (
        metrics["request_totals"]["successful"],
        int(prompt["total_sum"]),
        None,
        int(answer["total_sum"]),
    )
    return Figures(*counts, *ttft_ms, *(seconds * 1e3 for seconds in e2e_s))


def aiperf_words(url: str, out: Path) -> list[str]:
    """Its command; asked whether it is offline, it takes the folder for the name of a repository."""
    return [
        "aiperf",
        "profile",
        *("--model", MODEL, "--url", url, "--endpoint-type", "chat", "--streaming"),
        *("--tokenizer", str(folder("bytes")), "--use-server-token-count", "--no-server-metrics"),
        *("--conversation-num", str(CONVERSATIONS), "--conversation-turn-mean", str(TURNS)),
        *("--concurrency", str(AT_ONCE), "--isl", str(PROMPT_TOKENS), "--osl", str(ANSWER_TOKENS)),
        *("--artifact-dir", str(out / "aiperf"), "--ui", "none"),
    ]


def aiperf_figures(out: Path) -> Figures:
    """What it reports."""
    run = json.loads((out / "aiperf" / "profile_export_aiperf.json").read_text())
    totals = ("prompt_tokens", "prompt_cache_read_tokens", "completion_tokens")
    counts = [int(run[name]["avg"]) for name in ("request_count", *(f"total_usage_{one}" for one in totals))]
    times = [
        run[name][rank] for name in ("time_to_first_token", "request_latency") for rank in ("p50", "p95")
    ]
    return Figures(*counts, *times)


TOOLS: dict[str, tuple[Callable[[str, Path], list[str]], Callable[[Path], Figures]]] = {
    "guidellm": (guidellm_words, guidellm_figures),
    "aiperf": (aiperf_words, aiperf_figures),
}


async def measure(installed: Path, out: Path) -> bool:
    """Run one against fresh replicas and print a row of its figures and one of ours; whether counts agree."""
    name = installed.name.partition("-")[0]
    words, figures = TOOLS[name]
    async with Stack(out / "stack", REGIONS, {}) as stack:
        program, *arguments = words(stack.url, out)
        started_s = time.monotonic()
        log = out / f"{name}.log"
        with log.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                installed / "bin" / program, *arguments, stdout=file, stderr=file, cwd=out, env=offline(name)
            )
        try:
            status = await asyncio.wait_for(process.wait(), TIME_LIMIT_S)
        except TimeoutError:
            process.kill()
            raise EppError(f"{name} took more than {TIME_LIMIT_S:.0f} s; see {log}") from None
        if status:
            raise EppError(f"{name} ended with {status}:\n{log.read_text()[-2000:]}")
        seconds = time.monotonic() - started_s
    theirs, ours = figures(out), recorded(out / "stack" / "records")
    print_row(f"{installed.name} ({seconds:.0f} s)", theirs)
    print_row("on record", ours)
    known = [(one, two) for one, two in zip(theirs[:4], ours[:4], strict=True) if one is not None]
    return all(one == two for one, two in known)


def offline(name: str) -> dict[str, str]:
    """The environment of a tool: nothing is asked of a hub."""
    return dict(os.environ) | ({"HF_HUB_OFFLINE": "1"} if name == "guidellm" else {})


def print_row(title: str, figures: Figures) -> None:
    """Print a row of the table."""
    cells = ["-" if one is None else f"{one:,.0f}" for one in figures]
    print("| " + " | ".join((title, *cells)) + " |", flush=True)


async def measure_all(folders: Sequence[str]) -> int:
    """Print the table; the exit status."""
    print("| " + " | ".join(HEAD) + " |\n" + "|---" * len(HEAD) + "|")
    agree = True
    for one in folders:
        with tempfile.TemporaryDirectory() as out:
            agree &= await measure(Path(one), Path(out))
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(measure_all(sys.argv[1:])))
