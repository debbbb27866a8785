"""The load that shows what an engine's times depend on, and the engine class that explains what came back.

Pure. The load is one chain: prompts of several lengths, each new, then known, then known by half; then known
prompts at once, and beside a long answer. Two linear models are fitted, relative errors counting:

* TTFT less the round trip: a constant, the prompt's tokens, its uncached tokens;
* time per token: one level for each batch size, the tokens of context that the batch reads, and the prefills
  of others meanwhile.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from epp_lab.sim.engine_class import EngineClass
from epp_lab.workloads.content import Content, Prompt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp_lab.compare.stats import Floats
    from epp_lab.compare.trace import TraceRequest

#: Requests at once.
BATCHES = (1, 2, 4, 8, 16)
#: Where no limit showed among them: vLLM's default.
MOST_RUNNING = 256
_ANSWER_TOKENS = 128
#: Requests one after the other beside the long answer.
_BESIDE = 8
_BLOCK_TOKENS = 32
#: For each request before the next: engines may close a connection after an answer, which takes a moment to
#: be seen, and others of a batch may be answered later.
_PAUSE_S = 0.02
#: Samples that are further off than this many usual errors, and than this share, count for nothing.
_OUTLIER, _LEAST_OUTLIER = 3.0, 0.05
#: Passes of a fit: each takes errors relative to what the one before said.
_PASSES = 5
_ROUNDING, _LEAST_MS = 1e-12, 1e-3


def probes(longest_tokens: int, rounds: int, seed: int) -> list[TraceRequest]:
    """Return the load; the first request only opens the connection, and a session is what meets others.

    Args:
        longest_tokens: of a prompt.
        rounds: how often everything is measured.
        seed: of the prompts: engines must not know them from before.
    """
    content = Content(_BLOCK_TOKENS, seed << 32)
    lengths = [max(_BLOCK_TOKENS, longest_tokens >> shift) for shift in range(5)]
    last, pause_s = None, 0.0

    def fresh(length: int) -> Prompt:
        return content.grown(Prompt(), length, (0,))

    def add(prompt: Prompt, session: str, answer_tokens: int, after: int | None) -> int:
        return content.send(
            prompt,
            at_s=0.0,
            session=session,
            user=session,
            output_tokens=answer_tokens,
            after=after,
            think_s=pause_s,
        )

    def send(prompts: Sequence[Prompt], answer_tokens: int = 1, beside: int = 0) -> None:
        """Send prompts at once, and beside them the first one again, one time after the other."""
        nonlocal last, pause_s
        after, session = last, f"calibrate-{len(content.requests)}"
        for prompt in prompts:
            last = add(prompt, session, answer_tokens, after)
        for _ in range(beside):
            after = add(prompts[0], session, 1, after)
        pause_s = _PAUSE_S * len(prompts)

    send([fresh(lengths[-1])])
    for _ in range(rounds):
        for length in lengths:
            prompt = fresh(length)
            send([prompt])
            send([prompt], _ANSWER_TOKENS)
            send([content.grown(content.cut(prompt, len(prompt.ids) // 2), length)])
        send([prompt], _ANSWER_TOKENS, _BESIDE)
        for batch in BATCHES[1:]:
            for length in (lengths[-1], lengths[2]):
                prompts = [fresh(length) for _ in range(batch)]
                for prompt in prompts:
                    send([prompt])
                send(prompts, _ANSWER_TOKENS)
    return content.requests


@dataclass(frozen=True, slots=True)
class Fit:
    """A linear model.

    Attributes:
        values: coefficients.
        margins: half of their 95 % intervals.
        r2: share of the variance that it explains.
        error: median relative error of a sample.
        samples: how many it rests on.
    """

    values: Floats
    margins: Floats
    r2: float
    error: float
    samples: int


def least_squares(x: Floats, y: Floats) -> Fit:
    """Fit ``y = x @ values``, no value below 0; relative errors count, outliers do not.

    Args:
        x: samples x coefficients.
        y: above 0.
    """
    keep, least = np.ones(len(y), dtype=bool), np.median(y) / 2
    scale = np.maximum(y, least)
    for _ in range(_PASSES):
        used = np.ones(x.shape[1], dtype=bool)
        while True:
            rows = np.where(used, x / scale[:, None], 0.0)
            # The coefficient of a column of zeros is 0 but for rounding, which grows with the others.
            values = np.where(used, np.linalg.lstsq(rows[keep], (y / scale)[keep])[0], 0.0)
            if (values >= -_ROUNDING).all():
                break
            used[values.argmin()] = False
        errors = np.abs(rows @ values - y / scale)
        keep = errors <= max(_OUTLIER * float(np.median(errors)), _LEAST_OUTLIER)
        scale = np.maximum(x @ values, least / 5)
    values, rows, errors = np.maximum(values, 0.0), rows[keep], errors[keep]
    spread = errors @ errors / max(1, len(errors) - used.sum())
    margins = 1.96 * np.sqrt(np.maximum(0.0, np.diag(np.linalg.pinv(rows.T @ rows))) * spread)
    left, there = (y - x @ values)[keep], y[keep] - y[keep].mean()
    r2 = 1.0 - left @ left / (there @ there) if there.any() else 0.0  # nothing to explain: a busy machine's
    return Fit(values, margins, float(r2), float(np.median(errors)), len(errors))


@dataclass(frozen=True, slots=True)
class Measured:
    """What was found of one engine.

    Attributes:
        ttft: constant, by token of the prompt, by uncached token; ms.
        step: ms of a step by batch size (``batches``), by token of context, and by prefill beside it.
        batches: batch sizes that were reached.
        peak: most requests that decoded at once.
        caches: whether a known prompt is faster.
    """

    ttft: Fit
    step: Fit
    batches: tuple[int, ...]
    peak: int
    caches: bool

    def engine_class(
        self, name: str, decode_context_tokens: int, *, mixed: bool, **others: Any
    ) -> EngineClass:
        """Return the class; decode steps are those of sequences at one context.

        Args:
            name: of the class.
            decode_context_tokens: of each sequence.
            mixed: a prefill takes the place of a decode step, so that it costs decodes the rest.
            others: fields of `EngineClass` that nothing was measured of.
        """
        constant, by_prompt, by_uncached = self.ttft.values.tolist()
        *_, by_context, by_prefill = self.step.values.tolist()
        steps = self.step.values[:-2] + np.array(self.batches) * decode_context_tokens * by_context
        base = min(constant, by_prefill + mixed * float(steps[0]))
        return EngineClass(
            name=name,
            frontend_ms=constant - base,
            frontend_ms_per_token=by_prompt,
            prefill_base_ms=base,
            prefill_ms_per_token=by_uncached,
            decode_curve=tuple(zip(self.batches, np.maximum.accumulate(steps).tolist(), strict=True)),
            max_running=self.peak if self.batches != BATCHES else MOST_RUNNING,
            prefix_cache=self.caches,
            mixed=mixed,
            **others,
        )


def fit(sent: Sequence[TraceRequest], results: Sequence[Any], rtt_ms: float) -> Measured:
    """Fit what came back.

    An engine that reports no cached tokens has all that was sent before, or nothing if that is no faster.

    Args:
        sent: as `probes` returned them.
        results: their results in that order, `RequestResult` or `SimResult`, all answered.
        rtt_ms: round trip on an open connection to the engine.
    """
    meets, seen, rows = Counter(request.session for request in sent), set[int](), []
    for request, found in zip(sent, results, strict=True):
        known = len(seen.intersection(request.block_ids)) / len(request.block_ids)
        seen.update(request.block_ids)
        # A single token may be no text: then its answer's end tells when it came.
        ttft_ms = found.ttft_ms or found.e2e_ms
        times = ttft_ms - rtt_ms, found.intended_ms + ttft_ms, found.intended_ms + found.e2e_ms
        prompt_tokens = found.prompt_tokens or request.prompt_tokens
        tokens = prompt_tokens, known * prompt_tokens, found.cached_tokens or 0, found.completion_tokens
        rows.append((meets[request.session] == 1, *times, *tokens))
    alone, ttft, first, end, prompt, guessed, told, answer = np.array(rows[1:], dtype=float).T
    uncached, at = prompt - (told if told.any() else guessed), alone > 0
    constant, y = np.ones(int(at.sum())), np.maximum(ttft[at], _LEAST_MS)
    by_ttft = least_squares(np.column_stack([constant, prompt[at], uncached[at]]), y)
    caches = bool(told.any()) or bool(by_ttft.values[2] > by_ttft.margins[2])
    if not caches:
        uncached = prompt
        by_ttft = least_squares(np.column_stack([constant, 0.0 * constant, prompt[at]]), y)
    step, batches, peak = _fit_step(first, end, prompt, answer, by_ttft.values[2] * uncached)
    return Measured(by_ttft, step, batches, peak, caches)


def _fit_step(
    first: Floats, end: Floats, prompt: Floats, answer: Floats, prefill_ms: Floats
) -> tuple[Fit, tuple[int, ...], int]:
    """Fit time per token to what else went on, on average over an answer's time.

    Args:
        first: when each request had its first token, ms.
        end: when it ended.
        prompt: its tokens.
        answer: tokens of its answer.
        prefill_ms: how long its uncached tokens took, which answers meanwhile waited for.

    Returns:
        The fit, the batch sizes that were reached, and the largest.
    """
    at = (answer > 1) & (end > first)
    begins, ends, steps = first[at][:, None], end[at][:, None], answer[at] - 1
    share = np.maximum(np.minimum(ends, ends.T) - np.maximum(begins, begins.T), 0.0) / (ends - begins)
    beside = (first > begins) & (first < ends)
    y = np.maximum(((end - first)[at] - beside @ prefill_ms) / steps, _LEAST_MS)
    batch = share.sum(axis=1)
    peak = max(1, round(batch.max()))
    # Answers of a batch that do not quite overlap are no limit.
    batches = tuple(size for size in BATCHES if size * 3 <= peak * 4)
    levels = [np.interp(batch, batches, row) for row in np.eye(len(batches))]
    x = [*levels, share @ (prompt + answer / 2)[at], beside.sum(axis=1) / steps]
    return least_squares(np.column_stack(x), y), batches, peak
