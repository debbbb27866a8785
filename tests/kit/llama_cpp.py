"""llama.cpp with a model of a few random weights and a tokenizer of the tests, in this process or one of its own.

As a program it serves `MODEL` from a folder at a port until it is killed.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.kit.engine_process import EngineProcess
from tests.kit.ports import free_ports
from tests.kit.tokenizers import folder as tokenizer_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL = "tiny"
CONTEXT_TOKENS = 8192
#: Its tokenizer and chat template, as the picker reads them.
TOKENIZER = tokenizer_folder("gpt2")
_WIDTH, _HEADS, _FEED_FORWARD = 32, 2, 64


def write_model(path: Path) -> None:
    """Write a Llama of one layer as GGUF."""
    gguf = pytest.importorskip("gguf", reason="gguf is not installed: it writes llama.cpp's models")
    random = np.random.default_rng(0)
    tokenizer = json.loads((TOKENIZER / "tokenizer.json").read_text())
    special = {token["content"] for token in tokenizer["added_tokens"]}
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
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
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("gpt-2")
    file.add_token_list(tokens)
    kinds = gguf.TokenType
    file.add_token_types([kinds.CONTROL if token in special else kinds.NORMAL for token in tokens])
    file.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    file.add_add_bos_token(False)
    file.add_eos_token_id(tokens.index("<|im_end|>"))
    file.add_chat_template(json.loads((TOKENIZER / "tokenizer_config.json").read_text())["chat_template"])
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
def running_llama_cpp(folder: Path, name: str, **fields: Any) -> Iterator[str]:
    """Start a server of such a model under a name; its URL. Skips the test where it is not installed.

    Args:
        folder: where the model is written.
        name: of the model.
        fields: further ones of `xllamacpp.CommonParams`.
    """
    xllamacpp = pytest.importorskip("xllamacpp", reason="xllamacpp is not installed: llama.cpp in a wheel")
    path = folder / f"{name}.gguf"
    write_model(path)
    params = xllamacpp.CommonParams()
    params.model.path, params.model_alias = str(path), {name}
    params.hostnames, params.n_ctx, params.cpuparams.n_threads = ["127.0.0.1"], CONTEXT_TOKENS, 1
    for field, value in {"n_parallel": 1, "port": 0, **fields}.items():
        setattr(params, field, value)
    server = xllamacpp.Server(params)
    try:
        yield server.listening_address
    finally:
        del server


def llama_cpp_process(folder: Path, **fields: Any) -> EngineProcess:
    """A server of `MODEL` in a process of its own, with two slots and its metrics; fields as JSON has them."""
    for module in ("gguf", "xllamacpp"):
        pytest.importorskip(module, reason=f"{module} is not installed: llama.cpp and its models")
    port = free_ports()
    home = folder / str(port)
    home.mkdir()
    words = ["-m", "tests.kit.llama_cpp", str(home), str(port), json.dumps(fields)]
    return EngineProcess(sys.executable, words, port, folder)


if __name__ == "__main__":
    with running_llama_cpp(
        Path(sys.argv[1]),
        MODEL,
        port=int(sys.argv[2]),
        endpoint_metrics=True,
        **{"n_parallel": 2, "n_ctx": 2 * CONTEXT_TOKENS, **json.loads(sys.argv[3])},
    ):
        threading.Event().wait()
