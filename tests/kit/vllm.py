"""vLLM on the CPU: a model folder with random weights, and a replica of it as a child process.

``EPP_VLLM`` names the environment that ``tests/engines/install_vllm.sh`` installs.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import aiohttp
import pytest

from epp.lab.demo.child import Child
from tests.kit.tokenizers import folder as tokenizer_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

MODEL = "tiny"
CONTEXT_TOKENS = 8192
#: Attention on the CPU wants multiples of this.
BLOCK_TOKENS = 32
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
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
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
}
_FLAGS = (
    "--load-format dummy --enforce-eager --host 127.0.0.1 --disable-uvicorn-access-log"
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


@dataclass
class Vllm:
    """One replica, an async context manager that waits until it serves.

    Attributes:
        installed: what `environment` returns.
        model: what `write_model` returns.
        port: where it listens.
        folder: where its log goes.
        flags: further ones of ``vllm serve``.
        variables: of its environment, over those above.
    """

    installed: Path
    model: Path
    port: int
    folder: Path
    flags: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        settings = [f"{name}={value}" for name, value in {**_ENVIRONMENT, **self.variables}.items()]
        python = str(self.installed / "bin" / "python")
        words = [*settings, python, "-m", "vllm.entrypoints.cli.main", "serve", str(self.model)]
        words += ["--served-model-name", MODEL, "--port", str(self.port), *_FLAGS.split(), *self.flags]
        self._child = Child(f"vllm-{self.port}", words, self.folder, ("/usr/bin/env",))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self._child.__aenter__()
        try:
            async with asyncio.timeout(300), aiohttp.ClientSession() as http:
                while not await self._serves(http):
                    self._child.check()
                    await asyncio.sleep(0.5)
        except BaseException:
            await self.kill()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def kill(self) -> None:
        """End it with its engine process, as a crash of the machine would."""
        try:
            os.killpg(self._child.pid, signal.SIGKILL)
        except (ProcessLookupError, RuntimeError):
            return
        await self._child.__aexit__()

    async def _serves(self, http: aiohttp.ClientSession) -> bool:
        try:
            async with http.get(f"http://{self.address}/health") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False
