"""From a folder or a hub id to a `TokenizerModel`, with errors that name the key and the fix.

Reads ``tokenizer.json`` by tokenizers. What a model has in its place is converted by transformers, where that
package is installed. Code that comes with a model is never run.
"""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tokenizers import Tokenizer

    from epp.config.schema import ModelTokenizer
    from epp.tokens.model import TokenizerModel
    from epp.tokens.template import ChatTemplate


TOKENIZER, TOKENIZER_CONFIG, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
#: What transformers can convert where there is no ``tokenizer.json``.
CONVERTED = ("tokenizer.model", "tiktoken.model", "tekken.json", "vocab.json", "spiece.model")
_WANTED = (TOKENIZER, TOKENIZER_CONFIG, TEMPLATE, "config.json", "merges.txt", *CONVERTED)
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_hub_id(name: str) -> bool:
    """Return whether a name can be a model's at the hub, ``organisation/model``."""
    return _HUB_ID.fullmatch(name) is not None


def has_tokenizer(folder: Path) -> bool:
    """Return whether a folder holds a tokenizer, in one of the forms that can be read."""
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


log = logging.getLogger(__name__)

INSTALL = "pip install 'gorgo-epp[tokenizers]'"
#: ``chat_template: none`` says that a model is not for chats.
NO_TEMPLATE = "none"

_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


def load_model(name: str, section: ModelTokenizer, base: Path, source: str) -> TokenizerModel:
    """Load a model's tokenizer, ready to count.

    Args:
        name: public name of the model.
        section: where its files are and how it is counted.
        base: folder that relative paths are relative to.
        source: name of the configuration file, for errors.

    Raises:
        ConfigError: a package or a file is missing, or cannot be used.
    """
    key = f"tokens.models.{name}.source"
    try:
        from epp.tokens.model import TokenizerModel  # noqa: PLC0415  # optional packages, as below

        folder = _folder(section, base)
        tokenizer = _tokenizer(folder)
        config = _config(folder)
        constants = {word: text for word in _SPECIAL if (text := _special_text(config.get(word)))}
        key = f"tokens.models.{name}.chat_template"
        template = _template(section, folder, base, config, constants)
        log.info("tokens of %s are counted by its tokenizer in %s", name, folder)
        return TokenizerModel(tokenizer, template=template, markers=_markers(tokenizer, template, constants))
    except ImportError as error:
        raise ConfigError(source, key, f"tokenizers cannot be used: {error}", INSTALL) from error
    except Exception as error:  # the libraries raise plain exceptions
        problem = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(source, key, f"{section.source}: {problem}") from error


def _folder(section: ModelTokenizer, base: Path) -> Path:
    """Return the folder that is named, else the hub's in the cache, else one that is downloaded."""
    folder = base / section.source
    if folder.exists():
        return folder
    if not is_hub_id(section.source):
        raise ValueError(f"{folder} does not exist (give a folder or a hub id)")
    found = None if section.revision else cached(section.source)
    if found is not None:
        return found
    log.info("%s does not exist; %s is looked for at the hub", folder, section.source)
    return download(section.source, section.revision)


def _tokenizer(folder: Path) -> Tokenizer:
    path = folder / TOKENIZER
    if path.is_file():
        from tokenizers import Tokenizer  # noqa: PLC0415

        try:
            return Tokenizer.from_file(str(path))
        except Exception as error:
            raise ValueError(f"{path} is no tokenizer: {error}") from error
    other = next((name for name in CONVERTED if (folder / name).is_file()), "")
    if not other:
        raise ValueError(f"{folder} has no {TOKENIZER} (give the folder that holds it)")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # PyTorch is missed, which is not needed here
    try:
        from transformers import AutoTokenizer  # noqa: PLC0415  # takes a second
    except ImportError as error:
        problem = f"it has {other} alone, which transformers reads: {error}"
        raise ValueError(f"{problem} (pip install 'gorgo-epp[transformers]')") from error
    made = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    backend: Tokenizer | None = getattr(made, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(f"transformers reads it as {type(made).__name__}, which tokenizers cannot run")
    return backend


def _config(folder: Path) -> dict[str, Any]:
    """Return what ``tokenizer_config.json`` says, nothing when there is none."""
    path = folder / TOKENIZER_CONFIG
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} must be valid JSON: {error}") from error
    return config if isinstance(config, dict) else {}


def _special_text(value: Any) -> str:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else ""


def _template(
    section: ModelTokenizer, folder: Path, base: Path, config: dict[str, Any], constants: dict[str, str]
) -> ChatTemplate | None:
    """Return the configured file, else ``chat_template.jinja``, else what ``tokenizer_config.json`` holds."""
    if section.chat_template == NO_TEMPLATE:
        return None
    from epp.tokens.template import ChatTemplate  # noqa: PLC0415

    path = base / section.chat_template if section.chat_template else folder / TEMPLATE
    if section.chat_template or path.is_file():
        plain, tools = path.read_text(encoding="utf-8"), ""
    else:
        path = folder / TOKENIZER_CONFIG
        plain, tools = _templates_of(config.get("chat_template"))
    if not plain:
        fix = f"name a file with one, or write {NO_TEMPLATE!r} for a model that takes no chats"
        raise ValueError(f"no chat template ({fix})")
    try:
        return ChatTemplate(plain, tools, constants)
    except ValueError as error:
        raise ValueError(f"{path} is no template: {error}") from error


def _templates_of(value: Any) -> tuple[str, str]:
    """Return the default template and the one for chats with tools, empty where only one is given."""
    if isinstance(value, list):
        named = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
        return named.get("default") or "", named.get("tool_use") or ""
    return value or "", ""


def _markers(tokenizer: Tokenizer, template: ChatTemplate | None, constants: dict[str, str]) -> list[str]:
    """Return special tokens that rendered prompts are likely to hold: those that the template writes."""
    text = "" if template is None else template.source
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
    return [token for token in added if token in text] + list(constants.values())
