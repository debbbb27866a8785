"""The experiment `calibration` on two vLLM replicas on the CPU, one behind a relay that adds 60 ms.

    EPP_VLLM=... python -m tests.engines.calibrate FOLDER [options of `epp lab experiments calibration`]

The folder keeps the fleet and the runs: started again, it goes on where it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from epp_lab.compare.text import prompt_text
from epp_lab.workloads.registry import WORKLOADS
from tests.kit.vllm import MODEL, Vllm, environment, write_model

if TYPE_CHECKING:
    from collections.abc import Sequence

ONE_WAY_S = 0.030
PORTS, RELAY_PORT = (18111, 18112), 18113
_DOCS = Path(__file__).parents[2] / "docs"


def write_tokenizer(model: Path) -> None:
    """Replace a model's tokenizer by one that has the load's words as tokens, as large models' have."""
    texts = [prompt_text(request) for request in WORKLOADS["small-chat"].make(0)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1280, special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"], show_progress=False
    )
    tokenizer.train_from_iterator(
        [*texts, *(page.read_text() for page in sorted(_DOCS.glob("*.md")))], trainer
    )
    tokenizer.save(str(model / "tokenizer.json"))


async def _relayed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection: its handshake and its bytes take their time."""
    await asyncio.sleep(2 * ONE_WAY_S)
    far_reader, far_writer = await asyncio.open_connection("127.0.0.1", PORTS[1])
    await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    loop = asyncio.get_running_loop()
    while data := await reader.read(65536):
        loop.call_later(ONE_WAY_S, writer.write, data)
    loop.call_later(ONE_WAY_S, writer.close)


async def _epp(*words: str) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "epp", "lab", *words)
    if await process.wait():
        sys.exit(1)


async def main(folder: Path, options: Sequence[str]) -> None:
    model, fleet = write_model(folder / "model"), folder / "fleet.json"
    write_tokenizer(model)
    replicas = [Vllm(environment(), model, port, folder) for port in PORTS]
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(await asyncio.start_server(_relayed, "127.0.0.1", RELAY_PORT))
        await asyncio.gather(*map(stack.enter_async_context, replicas))
        if not fleet.exists():
            urls = (f"near=http://127.0.0.1:{PORTS[0]}", f"far=http://127.0.0.1:{RELAY_PORT}")
            words = ("--model", MODEL, "--longest", "3072", "--rounds", "1", "--out", str(fleet))
            await _epp("calibrate", *urls, *words)
        kept = str(folder / "runs.jsonl")
        await _epp("experiments", "calibration", "--fleet", str(fleet), "--kept", kept, *options)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2:]))
