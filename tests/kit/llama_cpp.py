"""A llama.cpp server in the test's process, with a model of a few random weights whose tokens are bytes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONTEXT_TOKENS = 8192
_SPECIAL = ["<unk>", "<s>", "</s>"]
_WIDTH, _HEADS, _FEED_FORWARD = 32, 2, 64


def write_model(path: Path) -> None:
    """Write a Llama of one layer as GGUF."""
    gguf = pytest.importorskip("gguf", reason="gguf is not installed: it writes llama.cpp's models")
    random = np.random.default_rng(0)
    tokens = [*_SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2, *[gguf.TokenType.BYTE] * 256]
    file = gguf.GGUFWriter(path, "llama")
    file.add_context_length(CONTEXT_TOKENS)
    file.add_embedding_length(_WIDTH)
    file.add_block_count(1)
    file.add_feed_forward_length(_FEED_FORWARD)
    file.add_head_count(_HEADS)
    file.add_head_count_kv(_HEADS)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_rope_dimension_count(_WIDTH // _HEADS)
    file.add_vocab_size(len(tokens))
    file.add_tokenizer_model("llama")
    file.add_token_list(tokens)
    file.add_token_scores([0.0] * len(tokens))
    file.add_token_types(kinds)
    file.add_unk_token_id(0)
    file.add_bos_token_id(1)
    file.add_eos_token_id(2)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (len(tokens), _WIDTH),
        "output": (len(tokens), _WIDTH),
        "blk.0.ffn_gate": (_FEED_FORWARD, _WIDTH),
        "blk.0.ffn_up": (_FEED_FORWARD, _WIDTH),
        "blk.0.ffn_down": (_WIDTH, _FEED_FORWARD),
        **{f"blk.0.attn_{name}": (_WIDTH, _WIDTH) for name in ("q", "k", "v", "output")},
    }
    for name, shape in shapes.items():
        file.add_tensor(f"{name}.weight", random.normal(0.0, 0.1, shape).astype(np.float32))
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        file.add_tensor(f"{name}.weight", np.ones(_WIDTH, np.float32))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


@contextlib.contextmanager
def running_llama_cpp(folder: Path, name: str) -> Iterator[str]:
    """Start a server of such a model under a name; its URL. Skips the test where it is not installed."""
    xllamacpp = pytest.importorskip("xllamacpp", reason="xllamacpp is not installed: llama.cpp in a wheel")
    path = folder / "tiny.gguf"
    write_model(path)
    params = xllamacpp.CommonParams()
    params.model.path, params.model_alias = str(path), {name}
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.n_ctx, params.n_parallel, params.cpuparams.n_threads = CONTEXT_TOKENS, 1, 1
    server = xllamacpp.Server(params)
    try:
        yield server.listening_address
    finally:
        del server
