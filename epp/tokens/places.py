"""Where a model's tokenizer files lie: folders, the Hugging Face cache, the hub."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

TOKENIZER, TOKENIZER_CONFIG, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
#: What transformers can convert where there is no ``tokenizer.json``.
CONVERTED = ("tokenizer.model", "tiktoken.model", "tekken.json", "vocab.json", "spiece.model")
_WANTED = (TOKENIZER, TOKENIZER_CONFIG, TEMPLATE, "config.json", "merges.txt", *CONVERTED)
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_hub_id(name: str) -> bool:
    """Whether a name can be a model's at the hub, ``organisation/model``."""
    return _HUB_ID.fullmatch(name) is not None


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds a tokenizer, in one of the forms that can be read."""
    return any((folder / name).is_file() for name in (TOKENIZER, *CONVERTED))


def find(names: Iterable[str], *, may_download: bool) -> Path | None:
    """Find the tokenizer of a served model; None where there is none.

    Args:
        names: of the model, the best first: hub ids, or folders by their absolute paths.
        may_download: whether the hub may be asked.
    """
    names = list(dict.fromkeys(names))
    places = [Path(name) if Path(name).is_absolute() else cached(name) for name in names]
    found = next((place for place in places if place is not None and has_tokenizer(place)), None)
    wanted = next(filter(is_hub_id, names), "")
    return download(wanted) if found is None and wanted and may_download else found


def cached(model_id: str) -> Path | None:
    """Find a model's newest snapshot with a tokenizer in the Hugging Face cache."""
    from huggingface_hub import constants  # noqa: PLC0415  # comes with tokenizers, which are optional

    model = Path(constants.HF_HUB_CACHE) / f"models--{model_id.replace('/', '--')}"
    snapshots = filter(has_tokenizer, (model / "snapshots").glob("*"))
    return max(snapshots, key=lambda snapshot: snapshot.stat().st_mtime, default=None)


def download(model_id: str, revision: str = "") -> Path:
    """Bring a model's tokenizer files from the hub into the Hugging Face cache.

    Raises:
        Exception: the library passes its HTTP client's errors on.
    """
    from huggingface_hub import snapshot_download  # noqa: PLC0415  # as above
    from huggingface_hub.utils.tqdm import disable_progress_bars  # noqa: PLC0415

    logging.getLogger("huggingface_hub").handlers.clear()  # it would say all a second time
    disable_progress_bars()
    return Path(snapshot_download(model_id, revision=revision or None, allow_patterns=list(_WANTED)))
