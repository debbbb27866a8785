"""Five models on an A100-80GB each, as engine classes.

Worked out from data sheets, like A30 and V100 in `epp.lab.sim.engine_class`, and only their order is to be
trusted: prefill at half of 312 TFLOPS, attention at 16k tokens of context included; decoding at 80 % of 2
TB/s, reading weights and, for each sequence, 32k tokens of KV cache; the KV pool is 90 % of 80 GB less
weights. Phi-3-mini is set slower to prefill than arithmetic makes it, because it was measured so (source [R],
section 3.1).
"""

from __future__ import annotations

from epp.lab.sim.engine_class import EngineClass


def _model(
    name: str, prefill_ms_per_token: float, decode: tuple[float, float], kv_capacity_tokens: int
) -> EngineClass:
    """One model on vLLM; ``decode`` is the step of one and of eight long sequences."""
    return EngineClass(
        name=name,
        frontend_ms=30.0,
        frontend_ms_per_token=0.005,
        prefill_base_ms=10.0,
        prefill_ms_per_token=prefill_ms_per_token,
        chunk_tokens=8192,
        decode_curve=((1, decode[0]), (8, decode[1])),
        max_running=64,
        kv_capacity_tokens=kv_capacity_tokens,
        output_reserve_ratio=0.0,
        context_tokens=131_072,
        mixed=True,
    )


A100_MODELS = (
    _model("granite-3.1-2b", 0.067, (9.0, 21.0), 817_000),
    _model("granite-3.1-8b", 0.174, (16.0, 40.0), 341_000),
    _model("phi-3-mini", 0.200, (16.0, 72.0), 163_000),
    _model("phi-3-medium", 0.265, (24.0, 53.0), 214_000),
    _model("llama-3.1-swallow-8b", 0.158, (15.0, 34.0), 427_000),
)
