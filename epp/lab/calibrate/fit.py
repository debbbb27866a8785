"""The load that shows what an engine's times depend on, and the engine class that explains what came back.

Pure. The load is one chain: prompts of several lengths, each new, then known, then known by half; then known
prompts at once. Two linear models are fitted, relative errors counting:

* TTFT less the round trip: a constant, the prompt's tokens, its uncached tokens;
* time per token: one level for each batch size, and the tokens of context that the batch reads.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from epp.lab.compare.trace import TraceRequest
from epp.lab.sim.engine_class import EngineClass
from epp.lab.workloads.content import Content

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.lab.compare.stats import Floats
    from epp.lab.workloads.content import Prompt

#: Requests at once.
BATCHES = (1, 2, 4, 8, 16)
#: Where no limit showed among them: vLLM's default.
MOST_RUNNING = 256
_ANSWER_TOKENS = 32
_BLOCK_TOKENS = 32
#: For each request before the next: engines may close a connection after an answer, which takes a moment to
#: be seen, and others of a batch may be answered later.
_PAUSE_MS = 20.0
#: Samples that are further off than this many usual errors, and than this share, count for nothing.
_OUTLIER, _LEAST_OUTLIER = 5.0, 0.05


def probes(longest_tokens: int, rounds: int, seed: int) -> list[TraceRequest]:
    """Return the load; the first request only opens the connection, and a session is what is sent at once.

    Args:
        longest_tokens: of a prompt.
        rounds: how often everything is measured.
        seed: of the prompts: engines must not know them from before.
    """
    content, requests = Content(_BLOCK_TOKENS), list[TraceRequest]()
    lengths = [max(_BLOCK_TOKENS, longest_tokens >> shift) for shift in range(5)]
    before = 0

    def send(prompts: Sequence[Prompt], answer_tokens: int = 1) -> None:
        nonlocal before
        session, after = f"calibrate-{len(requests)}", len(requests) - 1 if requests else None
        for prompt in prompts:
            request = TraceRequest(
                at_ms=0.0,
                session=session,
                user=session,
                prompt_tokens=prompt.tokens,
                output_tokens=answer_tokens,
                block_ids=tuple((seed << 32) + block for block in prompt.ids),
                block_tokens=_BLOCK_TOKENS,
                after=after,
                think_ms=_PAUSE_MS * before,
                turn_starts=(0,),
            )
            requests.append(request)
        before = len(prompts)

    send([content.fresh(lengths[-1])])
    for _ in range(rounds):
        for length in lengths:
            prompt = content.fresh(length)
            send([prompt])
            send([prompt], _ANSWER_TOKENS)
            send([content.grown(content.cut(prompt, len(prompt.ids) // 2), length)])
        for batch in BATCHES[1:]:
            for length in (lengths[-1], lengths[2]):
                prompts = [content.fresh(length) for _ in range(batch)]
                for prompt in prompts:
                    send([prompt])
                send(prompts, _ANSWER_TOKENS)
    return requests


@dataclass(frozen=True, slots=True)
class Fit:
    """A linear model: coefficients with half their 95 % intervals, R2, and the samples that it rests on."""

    values: Floats
    margins: Floats
    r2: float
    samples: int


def least_squares(x: Floats, y: Floats) -> Fit:
    """Fit ``y = x @ values``, no value below 0; relative errors count, outliers do not.

    Args:
        x: samples x coefficients.
        y: above 0.
    """
    keep, used = np.ones(len(y), dtype=bool), np.ones(x.shape[1], dtype=bool)
    for _ in range(x.shape[1] + 1):
        rows = np.where(used, x / y[:, None], 0.0)  # of a column of zeros the coefficient is 0
        values = np.linalg.lstsq(rows[keep], np.ones(int(keep.sum())))[0]
        errors = np.abs(rows @ values - 1.0)
        keep = errors <= max(_OUTLIER * float(np.median(errors)), _LEAST_OUTLIER)
        used &= values >= 0.0
    values, rows, errors, y = np.maximum(values, 0.0), rows[keep], errors[keep], y[keep]
    spread = errors @ errors / max(1, len(y) - used.sum())
    margins = 1.96 * np.sqrt(np.diag(np.linalg.pinv(rows.T @ rows)) * spread)
    r2 = 1.0 - ((y * errors) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    return Fit(values, margins, float(r2), len(y))


@dataclass(frozen=True, slots=True)
class Measured:
    """What was found of one engine.

    Attributes:
        ttft: constant, by token of the prompt, by uncached token; ms.
        step: ms of a step by batch size (``batches``), and by token of context.
        batches: batch sizes that were reached.
        peak: most requests that decoded at once.
        caches: whether a known prompt is faster.
    """

    ttft: Fit
    step: Fit
    batches: tuple[int, ...]
    peak: int
    caches: bool

    def engine_class(self, name: str, decode_context_tokens: int, **others: Any) -> EngineClass:
        """Return the class.

        A prefill's constant part is taken to be a decode step of one sequence, since both read the weights
        once; the rest is the front end's. Decode steps are those of sequences at one context.

        Args:
            name: of the class.
            decode_context_tokens: of each of them.
            others: fields of `EngineClass` that nothing was measured of.
        """
        constant, by_prompt, by_uncached = self.ttft.values.tolist()
        levels, by_context = self.step.values[:-1], self.step.values[-1]
        steps = levels + np.array(self.batches) * decode_context_tokens * by_context
        base = min(constant, float(steps[0]))
        return EngineClass(
            name=name,
            frontend_ms=constant - base,
            frontend_ms_per_token=by_prompt,
            prefill_base_ms=base,
            prefill_ms_per_token=by_uncached,
            decode_curve=tuple(zip(self.batches, np.maximum.accumulate(steps).tolist(), strict=True)),
            max_running=self.peak if self.peak < BATCHES[-1] else MOST_RUNNING,
            prefix_cache=self.caches,
            **others,
        )


def fit(sent: Sequence[TraceRequest], results: Sequence[Any], rtt_ms: float) -> Measured:
    """Fit what came back.

    Args:
        sent: as `probes` returned them.
        results: their results in that order, `RequestResult` or `SimResult`, all answered.
        rtt_ms: warm round trip to the engine.
    """
    ttft, caches = _first_tokens(sent, results, rtt_ms)
    batch, context, y = _decodes(sent, results)
    peak = max(1, round(batch.max()))
    batches = tuple(size for size in BATCHES if size <= peak)
    levels = [np.interp(batch, batches, row) for row in np.eye(len(batches))]
    return Measured(ttft, least_squares(np.column_stack([*levels, context]), y), batches, peak, caches)


def _first_tokens(sent: Sequence[TraceRequest], results: Sequence[Any], rtt_ms: float) -> tuple[Fit, bool]:
    """Fit TTFT to requests sent alone.

    An engine that reports no cached tokens has all that was sent before, or nothing if that is no faster.
    """
    at_once, seen, rows = Counter(request.session for request in sent), set[int](), []
    for request, found in zip(sent, results, strict=True):
        known = len(seen.intersection(request.block_ids)) / len(request.block_ids)
        seen.update(request.block_ids)
        if at_once[request.session] == 1:
            # A single token may be no text: then its answer's end tells when it came.
            ttft_ms = max((found.ttft_ms or found.e2e_ms) - rtt_ms, 1e-3)
            prompt_tokens = found.prompt_tokens or request.prompt_tokens
            rows.append((ttft_ms, prompt_tokens, known * prompt_tokens, found.cached_tokens or 0))
    y, prompt, guessed, told = np.array(rows[1:], dtype=float).T
    cached, ones, zeros = told if told.any() else guessed, np.ones(len(y)), np.zeros(len(y))
    found = least_squares(np.column_stack([ones, prompt, prompt - cached]), y)
    if told.any() or found.values[2] > found.margins[2]:
        return found, True
    return least_squares(np.column_stack([ones, zeros, prompt]), y), False


def _decodes(sent: Sequence[TraceRequest], results: Sequence[Any]) -> tuple[Floats, Floats, Floats]:
    """Return batch size, context in tokens, and ms a token, of each answer, on average over its time."""
    groups: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for request, found in zip(sent, results, strict=True):
        if found.itl_ms:
            context = (found.prompt_tokens or request.prompt_tokens) + found.completion_tokens / 2
            times = found.intended_ms + found.ttft_ms, found.intended_ms + found.e2e_ms
            groups[request.session].append((*times, context, found.itl_ms))
    rows = []
    for group in groups.values():
        first, end, context, itl_ms = np.array(group).T
        shared = np.minimum(end[:, None], end) - np.maximum(first[:, None], first)
        share = np.maximum(shared, 0.0) / (end - first)[:, None]
        rows.append([share.sum(axis=1), share @ context, itl_ms])
    batch, contexts, y = np.concatenate(rows, axis=1)
    return batch, contexts, y
