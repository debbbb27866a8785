"""vLLM on the CPU: a model folder with random weights, and a replica of it as a child process.

``EPP_VLLM`` names the environment that ``tests/engines/install_vllm.sh`` installs.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.kit.engine_process import EngineProcess
from tests.kit.tokenizers import folder as tokenizer_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

MODEL = "tiny"
CONTEXT_TOKENS = 8192
#: Attention on the CPU wants multiples of this.
BLOCK_TOKENS = 32
_WIDTH = 512
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": _WIDTH,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 1280,
    "max_position_embeddings": CONTEXT_TOKENS,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}
_ENVIRONMENT = (
    "HF_HUB_OFFLINE=1",
    "VLLM_NO_USAGE_STATS=1",
    "VLLM_CPU_KVCACHE_SPACE=1",
    "VLLM_CPU_OMP_THREADS_BIND=nobind",
    "OMP_NUM_THREADS=1",
    "VLLM_HOST_IP=127.0.0.1",
)
_FLAGS = (
    f"--served-model-name {MODEL} --load-format dummy --enforce-eager --host 127.0.0.1 --disable-uvicorn-access-log"
    f" --block-size {BLOCK_TOKENS} --enable-prompt-tokens-details"
)


def environment() -> Path:
    """Return the folder that vLLM is installed in; skips the calling test without one."""
    found = os.environ.get("EPP_VLLM", "")
    if not found:
        pytest.skip("EPP_VLLM names no vLLM: make test-vllm")
    return Path(found)


def write_model(folder: Path) -> Path:
    """Write a Llama of four layers, without weights, and its tokenizer; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    source = tokenizer_folder("gpt2")
    shutil.copy(source / "tokenizer.json", folder)
    told = json.loads((source / "tokenizer_config.json").read_text())
    # Else it builds the tokenizer that Llama has.
    told |= {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return folder


def write_adapter(folder: Path) -> Path:
    """Write a LoRA adapter of the model, of random weights; return the folder."""
    folder.mkdir(parents=True)
    told = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none", "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps({**told, "r": 8, "lora_alpha": 16}))
    random = np.random.default_rng(0)
    tensors = {
        f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{side}.weight": random.normal(
            0.0, 0.1, shape
        ).astype(np.float32)
        for layer in range(4)
        for side, shape in (("A", (8, _WIDTH)), ("B", (_WIDTH, 8)))
    }
    header, at = {}, 0
    for name, tensor in tensors.items():
        offsets = [at, at := at + tensor.nbytes]
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": offsets}
    text = json.dumps(header).encode()
    data = b"".join(tensor.tobytes() for tensor in tensors.values())
    (folder / "adapter_model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    return folder


class Vllm(EngineProcess):
    """One replica.

    Args:
        installed: what `environment` returns.
        model: what `write_model` returns.
        port: where it listens.
        folder: where its log goes.
        flags: further ones of ``vllm serve``.
    """

    def __init__(
        self, installed: Path, model: Path, port: int, folder: Path, flags: Sequence[str] = ()
    ) -> None:
        program = [str(installed / "bin" / "python"), "-m", "vllm.entrypoints.cli.main", "serve", str(model)]
        words = [*_ENVIRONMENT, *program, "--port", str(port), *_FLAGS.split(), *flags]
        super().__init__("/usr/bin/env", words, port, folder)
