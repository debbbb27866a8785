"""The load that shows what an engine's times depend on, and the engine class that explains what came back.

Pure. The load is one chain: prompts of several lengths, each new, then known, then known by half; then known
prompts at once. Two linear models are fitted, relative errors counting:

* TTFT less the round trip: a constant, the prompt's tokens, its uncached tokens;
* time per token: one level for each batch size, and the tokens of context that the batch reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from epp.lab.compare.trace import TraceRequest
from epp.lab.sim.engine_class import EngineClass
from epp.lab.workloads.content import Content, Prompt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.lab.compare.stats import Floats

#: Requests at once.
BATCHES = (1, 2, 4, 8, 16)
#: Where no limit showed among them: vLLM's default.
MOST_RUNNING = 256
_ANSWER_TOKENS = 32
_BLOCK_TOKENS = 32
#: Before a request: engines may close a connection after some answers, which takes a moment to be seen.
_PAUSE_MS = 20.0
#: After requests at once, until the others have ended, too.
_LONG_PAUSE_MS = 200.0
#: Samples that are further off than this many usual errors, and than this share, count for nothing.
_OUTLIER, _LEAST_OUTLIER = 5.0, 0.05


@dataclass(frozen=True, slots=True)
class Probe:
    """One request of the load.

    Attributes:
        request: what is sent.
        known_tokens: leading tokens that were sent before.
        together: number of the requests that it is sent at once with; -1 where it is sent alone.
    """

    request: TraceRequest
    known_tokens: int
    together: int = -1


class _Chain:
    """Probes that wait for the one before."""

    def __init__(self, seed: int) -> None:
        self.probes: list[Probe] = []
        self._after: int | None = None
        self._seed, self._groups, self._pause_ms = seed, 0, _PAUSE_MS

    def send(self, prompts: Sequence[Prompt], known_tokens: int, answer_tokens: int = 1) -> None:
        """Send prompts at once."""
        for prompt in prompts:
            request = TraceRequest(
                at_ms=0.0,
                session="calibrate",
                user="calibrate",
                prompt_tokens=prompt.tokens,
                output_tokens=answer_tokens,
                block_ids=tuple((self._seed << 32) + block for block in prompt.ids),
                block_tokens=_BLOCK_TOKENS,
                after=self._after,
                think_ms=self._pause_ms,
                turn_starts=(0,),
            )
            self.probes.append(Probe(request, known_tokens, self._groups if len(prompts) > 1 else -1))
        self._after = len(self.probes) - 1
        self._groups += 1
        self._pause_ms = _LONG_PAUSE_MS if len(prompts) > 1 else _PAUSE_MS


def probes(longest_tokens: int, rounds: int, seed: int) -> list[Probe]:
    """Return the load; the first request only opens the connection.

    Args:
        longest_tokens: of a prompt.
        rounds: how often everything is measured.
        seed: of the prompts: engines must not know them from before.
    """
    content, chain = Content(_BLOCK_TOKENS), _Chain(seed)
    lengths = [max(_BLOCK_TOKENS, longest_tokens >> shift) for shift in range(5)]
    chain.send([content.fresh(lengths[-1])], 0)
    for _ in range(rounds):
        for length in lengths:
            prompt = content.fresh(length)
            head = content.cut(prompt, length // _BLOCK_TOKENS // 2)
            chain.send([prompt], 0)
            chain.send([prompt], length, _ANSWER_TOKENS)
            chain.send([content.grown(head, length)], head.tokens)
        for batch in BATCHES[1:]:
            for length in (lengths[-1], lengths[2]):
                prompts = [content.fresh(length) for _ in range(batch)]
                for prompt in prompts:
                    chain.send([prompt], 0)
                chain.send(prompts, length, _ANSWER_TOKENS)
    return chain.probes


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
    keep, used = np.ones(len(y), dtype=bool), list(range(x.shape[1]))
    for _ in range(2):
        while True:
            rows = (x / y[:, None])[:, used]
            found = np.linalg.lstsq(rows[keep], np.ones(int(keep.sum())))[0]
            if len(used) == 1 or (found >= 0.0).all():
                break
            del used[int(found.argmin())]
        errors = np.abs(rows @ found - 1.0)
        kept, keep = keep, errors <= max(_OUTLIER * float(np.median(errors)), _LEAST_OUTLIER)
    spread = (errors[kept] ** 2).sum() / max(1, kept.sum() - len(used))
    values, margins = np.zeros(x.shape[1]), np.zeros(x.shape[1])
    values[used] = found
    margins[used] = 1.96 * np.sqrt(np.diag(np.linalg.pinv(rows[kept].T @ rows[kept])) * spread)
    left, there = y[kept] - x[kept] @ values, y[kept] - y[kept].mean()
    return Fit(values, margins, float(1.0 - left @ left / (there @ there)), int(kept.sum()))


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
        *levels, by_context = self.step.values.tolist()
        steps = [
            level + batch * decode_context_tokens * by_context
            for level, batch in zip(levels, self.batches, strict=True)
        ]
        base = min(constant, steps[0])
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


def fit(sent: Sequence[Probe], results: Sequence[Any], rtt_ms: float) -> Measured:
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


def _first_tokens(sent: Sequence[Probe], results: Sequence[Any], rtt_ms: float) -> tuple[Fit, bool]:
    """Fit TTFT to requests sent alone.

    An engine that reports no cached tokens either has all that was sent before or nothing: what fits better.
    """
    alone = [
        (probe, found) for probe, found in list(zip(sent, results, strict=True))[1:] if probe.together < 0
    ]
    # A single token may be no text: then its answer's end tells when it came.
    y = np.array([max((found.ttft_ms or found.e2e_ms) - rtt_ms, 1e-3) for _, found in alone])
    prompt = np.array([found.prompt_tokens or probe.request.prompt_tokens for probe, found in alone], float)
    if any(found.cached_tokens for _, found in alone):
        hypotheses = [np.array([found.cached_tokens or 0.0 for _, found in alone])]
    else:
        known = np.array([probe.known_tokens / probe.request.prompt_tokens for probe, _ in alone])
        hypotheses = [np.zeros(len(alone)), known * prompt]
    fits = []
    for cached in hypotheses:
        x = [np.ones(len(y)), prompt if cached.any() else np.zeros(len(y)), prompt - cached]
        fits.append((least_squares(np.column_stack(x), y), bool(cached.any())))
    return max(fits, key=lambda found: found[0].r2)


def _decodes(sent: Sequence[Probe], results: Sequence[Any]) -> tuple[Floats, Floats, Floats]:
    """Return batch size, context in tokens, and ms a token, of each answer, on average over its time."""
    groups: dict[int, list[Any]] = {}
    for at, (probe, found) in enumerate(zip(sent, results, strict=True)):
        if probe.request.output_tokens > 1 and found.itl_ms:
            groups.setdefault(probe.together if probe.together >= 0 else -at, []).append(found)
    rows = []
    for group in groups.values():
        first = np.array([found.intended_ms + found.ttft_ms for found in group])
        end = np.array([found.intended_ms + found.e2e_ms for found in group])
        shared = np.minimum(end[:, None], end) - np.maximum(first[:, None], first)
        share = np.maximum(shared, 0.0) / (end - first)[:, None]
        context = np.array([(found.prompt_tokens or 0) + found.completion_tokens / 2 for found in group])
        rows.append(np.column_stack([share.sum(axis=1), share @ context, [found.itl_ms for found in group]]))
    batch, context, y = np.concatenate(rows).T
    return batch, context, y
