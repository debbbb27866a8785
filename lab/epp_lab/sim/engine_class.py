"""Constants of replica classes: how fast a kind of engine works, and where each number is from.

Sources are named as in docs/sources.md: [G] is the reference implementation and its raw results, [P] the
earlier prototype simulation. Nothing here knows how the engine uses its constants; the model is in
``engine.py``.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class EngineClass:
    """One kind of replica: hardware, engine and model together.

    Attributes:
        name: name in configuration and records.
        frontend_ms: HTTP and tokenizer time before the scheduler sees a request; runs beside the GPU.
        frontend_ms_per_token: the same, per prompt token, cached or not.
        prefill_base_ms: fixed time of one prefill batch.
        prefill_ms_per_token: prefill time of one uncached token.
        chunk_tokens: most uncached tokens in one prefill batch.
        decode_curve: ascending (batch size, milliseconds of one decode step); linear in between, and beyond
            the last point with the slope of the last segment.
        max_running: most requests admitted at once.
        kv_capacity_tokens: size of the KV pool.
        output_reserve_ratio: share of a request's remaining output that admission sets aside in the KV pool.
        context_tokens: longest prompt plus output.
        prefix_cache: whether finished work is kept for later prompts.
        mixed: prefill chunks share a step with the decodes, instead of stopping them.
        state_slots: recurrent states of a hybrid model: one for each running request and each checkpoint at
            which a prefix can be taken up (`Checkpoints`). None for a model that keeps every token.
        states_at_blocks: states are kept at the ends of blocks alone, as vLLM does.
        kv_bytes_per_token: size of a token in the KV cache, as it goes from one engine to another.
    """

    name: str
    frontend_ms: float
    frontend_ms_per_token: float
    prefill_base_ms: float
    prefill_ms_per_token: float
    chunk_tokens: int
    decode_curve: tuple[tuple[int, float], ...]
    max_running: int
    kv_capacity_tokens: int
    output_reserve_ratio: float
    context_tokens: int
    prefix_cache: bool = True
    mixed: bool = False
    state_slots: int | None = None
    states_at_blocks: bool = False
    kv_bytes_per_token: int = 0

    def decode_step_ms(self, batch: int) -> float:
        """Return the milliseconds of one decode step of ``batch`` requests, interpolated on the curve."""
        curve = self.decode_curve
        if batch <= curve[0][0] or len(curve) == 1:
            return curve[0][1]
        upper = min(bisect_right(curve, batch, key=lambda point: point[0]), len(curve) - 1)
        (low, low_ms), (high, high_ms) = curve[upper - 1], curve[upper]
        return low_ms + (high_ms - low_ms) * (batch - low) / (high - low)

    def prefill_step_ms(self, decoding: int, uncached_tokens: int) -> float:
        """Return the milliseconds of one step that computes a chunk of a prompt, and may decode beside it.

        The chunk's tokens cost what they cost alone; the decodes ride along for what their step takes beyond
        one of a single sequence, the weights being read once for both.
        """
        prefill_ms = self.prefill_base_ms + self.prefill_ms_per_token * uncached_tokens
        if not decoding:
            return prefill_ms
        step_ms = self.decode_step_ms(decoding)
        return max(step_ms, prefill_ms + step_ms - self.decode_step_ms(1))

    def arrival_delay_ms(self, prompt_tokens: int) -> float:
        """Return the milliseconds from the replica's socket to the scheduler's queue."""
        return self.frontend_ms + self.frontend_ms_per_token * prompt_tokens


# source [G], quiet inter-token latency p50 for batches 1 to 12, then the lower envelope of
# running/throughput for 22, 33 and 64. The slope doubles past 20, the CUDA-graph limit of that launch. The
# fit 7.37 + 1.32*(B-1) runs through the points up to 8 and is above what was measured from 12 on.
_L40S_X2_DECODE = (
    (1, 7.2),
    (2, 8.5),
    (3, 10.1),
    (4, 11.6),
    (6, 14.0),
    (8, 15.9),
    (12, 18.1),
    (22, 27.0),
    (33, 46.0),
    (64, 73.0),
)

L40S_X2 = EngineClass(
    name="l40s-x2",
    # source [G]: 97-112 ms for tiny prompts at RTT 20, of which one prefill batch is 20.
    frontend_ms=65.0,
    # source [G], TTFT = 136 + 0.013*prompt + 0.060*uncached: the part that cached tokens pay too.
    frontend_ms_per_token=0.013,
    # source [P]. A 2k-token prefill then stalls decodes by 0.070 ms per token (0.072 seen).
    prefill_base_ms=20.0,
    # source [G], the same fit; 0.057 under load.
    prefill_ms_per_token=0.060,
    chunk_tokens=4096,  # source [G]: SGLang's default below 60 GB of GPU memory
    decode_curve=_L40S_X2_DECODE,
    max_running=64,  # source [G]: most ever seen running, with 35 waiting behind them
    kv_capacity_tokens=983_549,  # source [G]: KV pool in the result files
    output_reserve_ratio=0.7,  # source [G]: new_token_ratio at start
    context_tokens=32_768,  # source [G]: launch flag
)

H100 = replace(
    L40S_X2,  # the same front end on the same kind of host
    name="h100",
    prefill_base_ms=12.0,  # source [P]
    # source [G] quotes 0.04 (a 4k-token warm-up, about 25k tokens/s); the engine logs' slope of
    # 0.07 includes queueing, and the 3.81x of a cold 4k probe would make it 0.017.
    prefill_ms_per_token=0.040,
    chunk_tokens=8192,  # source [G]: SGLang's default below 90 GB of GPU memory
    decode_curve=tuple((size, step_ms / 1.6) for size, step_ms in _L40S_X2_DECODE),  # source [P]
    kv_capacity_tokens=788_766,  # source [G]: the metrics fixture
)

# Llama 3 8B in fp16 on vLLM, the pools of Lodestar's evaluation (source [L]: A30; L20; V100 with the prefix
# cache off; chunks of prompts beside decodes on all). No latencies of theirs are published, so these are
# worked out from data sheets, and only their order is to be trusted: 16 GB of weights, 16 GFLOP and 131 kB
# of KV cache a token; prefill at 50 % of 165 TFLOPS (A30), at 35 % of 125 TFLOPS (V100, without
# FlashAttention 2) and at 75 % of 119.5 TFLOPS (L20: a rate capped below what the chip can do, so more of
# it is reached; the paper calls it the faster of the two); a decode step reads the weights at 80 % of 933,
# 900 and 864 GB/s, and each further sequence adds its arithmetic and 2k tokens of KV cache; the KV pool is
# 90 % of 24, 32 and 48 GB less weights and 1.5 GB. Context: what such a pool serves.
A30 = EngineClass(
    name="a30",
    frontend_ms=40.0,
    frontend_ms_per_token=0.005,
    prefill_base_ms=12.0,
    prefill_ms_per_token=0.194,
    chunk_tokens=2048,  # vLLM's default budget of a step
    decode_curve=((1, 21.5), (64, 56.0)),
    max_running=64,
    kv_capacity_tokens=31_000,
    output_reserve_ratio=0.0,  # vLLM sets nothing aside and preempts
    context_tokens=24_576,
    mixed=True,
)

V100 = replace(
    A30,
    name="v100",
    prefill_base_ms=15.0,
    prefill_ms_per_token=0.366,
    decode_curve=((1, 22.2), (64, 75.0)),
    kv_capacity_tokens=86_000,
    prefix_cache=False,
)
L20 = replace(
    A30,
    name="l20",
    prefill_ms_per_token=0.179,
    decode_curve=((1, 23.2), (64, 58.9)),
    kv_capacity_tokens=196_000,
)


def scaled(cls: EngineClass, name: str, *, prefill: float = 1.0, decode: float = 1.0) -> EngineClass:
    """Return the same engine with its GPU times multiplied."""
    return replace(
        cls,
        name=name,
        prefill_base_ms=cls.prefill_base_ms * prefill,
        prefill_ms_per_token=cls.prefill_ms_per_token * prefill,
        decode_curve=tuple((size, step_ms * decode) for size, step_ms in cls.decode_curve),
    )


# Engines that no policy was written for: what holds only on one of them is no property of a policy.
VARIANTS = (
    # vLLM's chunked prefill: decodes go on beside chunks of prompts (source [P]).
    replace(L40S_X2, name="l40s-x2-mixed", mixed=True, chunk_tokens=1024),
    # The published model is a hybrid; about 225 recurrent states (source [G]).
    replace(L40S_X2, name="l40s-x2-hybrid", state_slots=225),
    # Constants wrong by half, together and against each other.
    scaled(L40S_X2, "l40s-x2-fast", prefill=0.5, decode=0.5),
    scaled(L40S_X2, "l40s-x2-slow", prefill=1.5, decode=1.5),
    scaled(L40S_X2, "l40s-x2-slow-prefill", prefill=1.5, decode=0.5),
    scaled(L40S_X2, "l40s-x2-slow-decode", prefill=0.5, decode=1.5),
    # Other batch curves: each sequence costs as much as the first few (the fit of source [G], which
    # holds up to 8), and nearly nothing, as where reading the weights is all.
    replace(L40S_X2, name="l40s-x2-steep", decode_curve=((1, 7.37), (2, 8.69))),
    replace(L40S_X2, name="l40s-x2-flat", decode_curve=((1, 12.0), (64, 20.0))),
)

# Five models on an A100-80GB each, worked out from data sheets like A30 and V100; only their order is to be
# trusted: prefill at half of 312 TFLOPS, attention at 16k tokens of context included; decoding at 80 % of 2
# TB/s, reading weights and, for each sequence, 32k tokens of KV cache (the step of one and of eight long
# sequences); the KV pool is 90 % of 80 GB less weights. Phi-3-mini is set slower to prefill than arithmetic
# makes it, because it was measured so (source [R], section 3.1).
A100_MODELS = tuple(
    replace(
        A30,
        name=name,
        frontend_ms=30.0,
        prefill_base_ms=10.0,
        prefill_ms_per_token=prefill_ms_per_token,
        chunk_tokens=8192,
        decode_curve=((1, one_ms), (8, eight_ms)),
        kv_capacity_tokens=kv_capacity_tokens,
        context_tokens=131_072,
    )
    for name, prefill_ms_per_token, one_ms, eight_ms, kv_capacity_tokens in (
        ("granite-3.1-2b", 0.067, 9.0, 21.0, 817_000),
        ("granite-3.1-8b", 0.174, 16.0, 40.0, 341_000),
        ("phi-3-mini", 0.200, 16.0, 72.0, 163_000),
        ("phi-3-medium", 0.265, 24.0, 53.0, 214_000),
        ("llama-3.1-swallow-8b", 0.158, 15.0, 34.0, 427_000),
    )
)

# Llama 3.1 8B on one H100 and 70B on four of them (vLLM, bf16), worked out from data sheets: only their order
# is to be trusted. Prefill at half of 989 TFLOPS a GPU. A step reads the weights at 80 % of 3.35 TB/s, and of
# 70B waits 3 ms for its all-reduces; each sequence adds 3k tokens of KV cache. The KV pool is 90 % of 80 GB
# each less weights and 2 GB. A token has 8 heads of 128 keys and values in 32 or 80 layers.
H100_8B = replace(
    A30,
    name="h100-8b",
    frontend_ms=15.0,
    prefill_base_ms=6.2,
    prefill_ms_per_token=0.0324,
    chunk_tokens=8192,  # vLLM's default there
    decode_curve=((1, 6.2), (256, 43.7)),
    max_running=256,
    kv_capacity_tokens=412_000,
    context_tokens=131_072,
    kv_bytes_per_token=131_072,
)
H100_70B = replace(
    H100_8B,
    name="h100x4-70b",
    prefill_base_ms=16.1,
    prefill_ms_per_token=0.0708,
    decode_curve=((1, 16.1), (256, 39.6)),
    kv_capacity_tokens=427_000,
    kv_bytes_per_token=327_680,
)

ENGINE_CLASSES = {cls.name: cls for cls in (L40S_X2, H100, A30, V100, L20, H100_8B, H100_70B, *VARIANTS)}
