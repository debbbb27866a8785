"""Check of the recorded traffic: can prefix and distance terms pay on it? Pure.

The prefix: how much of the prompts had been sent before, whoever served it - the ceiling of what any cache
could have saved - from the ids of their prefixes. Distance: how far the candidates lie apart, beside what a
request waits for its first token anyway.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from epp.ops.doctor.context import ENOUGH, NotFetchedError, Traffic, advice, note
from epp.policies.base import Need
from epp.policies.registry import create
from epp.types import split_rank

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from epp.ops.doctor.context import Context, Findings

#: A prefix term pays when this many tokens of prefill can be saved in a mean request. L40S-class hardware
#: prefills some 10 tokens a millisecond, so less than this is below what one queued request costs.
WORTH_TOKENS = 128.0
#: A shorter prompt is prefilled in one small batch, cached or not.
SHORT_TOKENS = 512.0
#: Distance pays when candidates lie this far apart: more than the noise of one RTT, and a share of TTFT.
WORTH_MS, WORTH_SHARE = 5.0, 0.02


def measure(records: Iterable[Mapping[str, Any]]) -> Traffic:
    """Measure the traffic by going once through records, oldest first."""
    seen: set[str] = set()
    prompts: list[float] = []
    spreads: list[float] = []
    ttfts: list[float] = []
    known: set[str] = set()
    reusable = 0.0
    for record in records:
        if record["kind"] == "outcome":
            if record["ttft_ms"] is not None:
                ttfts.append(record["ttft_ms"])
            if record["cached_tokens"] is not None:
                known.add(split_rank(record.get("served") or record["endpoint"])[0])
        elif record["kind"] == "decision" and (tokens := record["request"]["prompt_tokens"]):
            prompts.append(tokens)
            unknown = record["unknown"].get("rtt_ms", ())
            rtts = [rtt_ms for at, rtt_ms in enumerate(record["signals"]["rtt_ms"]) if at not in unknown]
            if rtts:
                spreads.append(max(rtts) - min(rtts))
            blocks = record["blocks"]
            common = next((at for at, block in enumerate(blocks) if block not in seen), len(blocks))
            reusable += min(common * record["block_tokens"], tokens)
            seen.update(blocks)
    return Traffic(
        requests=len(prompts),
        prompt_tokens=median(prompts) if prompts else 0.0,
        reusable_tokens=reusable / len(prompts) if prompts else 0.0,
        reuse=reusable / sum(prompts) if prompts else 0.0,
        spread_ms=median(spreads) if spreads else 0.0,
        ttft_ms=median(ttfts) if ttfts else None,
        cached_known=frozenset(known),
    )


def worth(context: Context) -> Findings:
    """Check whether the policy's terms can pay, and name a better policy where they cannot."""
    traffic, policy_name = context.traffic, context.config.policy.name
    if traffic is None:
        yield note("no records, so whether prefix and distance can pay was not checked")
        raise NotFetchedError
    if traffic.requests < ENOUGH:
        yield note(f"{traffic.requests} recorded requests with a prompt are too few to tell what could pay")
        return
    limit_ms = max(WORTH_MS, WORTH_SHARE * (traffic.ttft_ms or 0.0))
    prefix, distance = traffic.reusable_tokens >= WORTH_TOKENS, traffic.spread_ms >= limit_ms
    what = (
        f"of {traffic.requests} requests (median prompt {traffic.prompt_tokens:.0f} tokens) "
        f"{traffic.reuse:.0%} of prompt tokens had been sent before, {traffic.reusable_tokens:.0f} a request"
    )
    far = f"endpoints lie {traffic.spread_ms:.1f} ms apart"
    yield note(f"{what}; {far}")
    needs = create(policy_name).needs
    prompts_are = "short" if traffic.prompt_tokens < SHORT_TOKENS else "rarely alike"
    if Need.PROMPT in needs and not prefix and not distance:
        yield advice(
            f"{what}, and {far}",
            f"prompts are {prompts_are} and nobody is far: neither the prefix nor the distance term can pay, "
            f"and {policy_name} only has their noise",
            "use policy least-request, which counts live requests and reads no prompts",
        )
    elif Need.PROMPT in needs and Need.RTT not in needs and not prefix:
        yield advice(
            f"{what}, but {far}",
            f"prompts are {prompts_are}: {policy_name} finds nothing in caches, and sees no distance",
            "use policy gorgo, which prices distance",
        )
    elif distance and Need.RTT not in needs:
        yield advice(
            far,
            f"{policy_name} treats the farthest endpoint as next door",
            "use policy gorgo, which prices distance beside cache and queue",
        )
    elif prefix and not needs & {Need.PROMPT, Need.SESSION}:
        yield advice(
            what,
            f"{policy_name} does not look at caches, so these tokens are often prefilled again",
            "use policy gorgo, or session-affinity where prompts cannot be read",
        )
    else:
        pays = [name for name, does in (("prefix", prefix), ("distance", distance)) if does]
        yield note(f"{' and '.join(pays) or 'no'} terms can pay here; {policy_name} fits")
