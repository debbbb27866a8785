"""From a folder or a hub id to a `TokenizerModel`, with errors that name the key and the fix.

Reads ``tokenizer.json`` by tokenizers. What a model has in its place is converted by transformers, where that
package is installed. Code that comes with a model is never run.
"""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING, Any

from epp.errors import ConfigError
from epp.tokens.places import CONVERTED, TEMPLATE, TOKENIZER, TOKENIZER_CONFIG, cached, download, is_hub_id

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tokenizers import Tokenizer

    from epp.config.schema import ModelTokenizer
    from epp.tokens.model import TokenizerModel
    from epp.tokens.template import ChatTemplate

    #: Key below the model's, problem and fix to an error.
    _Wrong = Callable[[str, str, str], ConfigError]

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

    def wrong(key: str, problem: str, fix: str) -> ConfigError:
        return ConfigError(source, f"tokens.models.{name}.{key}", problem, fix)

    try:
        import tokenizers  # noqa: F401, PLC0415  # optional: only models with a tokenizer need it

        from epp.tokens.model import TokenizerModel  # noqa: PLC0415
        from epp.tokens.template import ChatTemplate  # noqa: F401, PLC0415
    except ImportError as error:
        raise wrong("source", f"tokenizers cannot be used: {error}", INSTALL) from error
    folder = _folder(section, base, wrong)
    tokenizer = _tokenizer(folder, section.source, wrong)
    config = _config(folder, wrong)
    constants = {word: text for word in _SPECIAL if (text := _special_text(config.get(word)))}
    template = _template(section, folder, base, config=config, constants=constants, wrong=wrong)
    log.info("tokens of %s are counted by its tokenizer in %s", name, folder)
    return TokenizerModel(tokenizer, template=template, markers=_markers(tokenizer, template, constants))


def _folder(section: ModelTokenizer, base: Path, wrong: _Wrong) -> Path:
    """The folder that is named, else the hub's in the cache, else one that is downloaded."""
    folder = base / section.source
    if folder.exists():
        return folder
    if not is_hub_id(section.source):
        raise wrong("source", f"{folder} does not exist", "give a folder or a hub id")
    found = None if section.revision else cached(section.source)
    if found is not None:
        return found
    log.info("%s does not exist; %s is looked for at the hub", folder, section.source)
    try:
        return download(section.source, section.revision)
    except Exception as error:  # the library passes its HTTP client's errors on
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        problem = f"{section.source} is no folder, and cannot be had from the hub: {said}"
        raise wrong("source", problem, "download it once and give the folder") from error


def _tokenizer(folder: Path, named: str, wrong: _Wrong) -> Tokenizer:
    path = folder / TOKENIZER
    other = next((name for name in CONVERTED if (folder / name).is_file()), "")
    if not path.is_file() and not other:
        raise wrong("source", f"{named} has no {TOKENIZER}", "give the folder that holds it")
    try:
        if path.is_file():
            from tokenizers import Tokenizer  # noqa: PLC0415  # optional

            return Tokenizer.from_file(str(path))
        return _converted(folder)
    except ImportError as error:
        fix = "pip install 'gorgo-epp[transformers]'"
        raise wrong("source", f"{named} has {other} alone, which transformers reads: {error}", fix) from error
    except Exception as error:  # the libraries raise plain exceptions
        problem = f"{folder / other if other else path} is no tokenizer: {error}"
        raise wrong("source", problem, "is the download complete?") from error


def _converted(folder: Path) -> Tokenizer:
    """What transformers makes of a model without ``tokenizer.json``."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # PyTorch is missed, which is not needed here
    from transformers import AutoTokenizer  # noqa: PLC0415  # optional, and takes a second

    made = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    backend: Tokenizer | None = getattr(made, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(f"transformers reads it as {type(made).__name__}, which tokenizers cannot run")
    return backend


def _config(folder: Path, wrong: _Wrong) -> dict[str, Any]:
    """What ``tokenizer_config.json`` says, nothing when there is none."""
    path = folder / TOKENIZER_CONFIG
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise wrong("source", f"{path}: {error}", "the file must be valid JSON") from error
    return config if isinstance(config, dict) else {}


def _special_text(value: Any) -> str:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else ""


def _template(
    section: ModelTokenizer,
    folder: Path,
    base: Path,
    *,
    config: dict[str, Any],
    constants: dict[str, str],
    wrong: _Wrong,
) -> ChatTemplate | None:
    """The configured file, else ``chat_template.jinja``, else what ``tokenizer_config.json`` holds."""
    if section.chat_template == NO_TEMPLATE:
        return None
    from epp.tokens.template import ChatTemplate  # noqa: PLC0415  # optional

    path = base / section.chat_template if section.chat_template else folder / TEMPLATE
    plain, tools = _templates_of(config.get("chat_template"))
    if section.chat_template or path.is_file():
        try:
            plain, tools = path.read_text(encoding="utf-8"), ""
        except (OSError, ValueError) as error:
            raise wrong("chat_template", str(error), "give a file with a Jinja template") from error
    else:
        path = folder / TOKENIZER_CONFIG
    if not plain:
        fix = f"name a file with one, or write {NO_TEMPLATE!r} for a model that takes no chats"
        raise wrong("chat_template", f"{section.source} has no chat template", fix)
    try:
        return ChatTemplate(plain, tools, constants)
    except ValueError as error:
        raise wrong("chat_template", f"{path} is no template: {error}", "correct it") from error


def _templates_of(value: Any) -> tuple[str, str]:
    """The default template and the one for chats with tools; one serves for both where only one is given."""
    if isinstance(value, str):
        return value, ""
    entries = value if isinstance(value, list) else []
    named = {
        entry["name"]: entry["template"]
        for entry in entries
        if isinstance(entry, dict) and isinstance(entry.get("template"), str) and "name" in entry
    }
    return named.get("default", ""), named.get("tool_use", "")


def _markers(tokenizer: Tokenizer, template: ChatTemplate | None, constants: dict[str, str]) -> list[str]:
    """Special tokens that rendered prompts are likely to hold: those that the template writes."""
    text = "" if template is None else template.source
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
    return [token for token in added if token in text] + list(constants.values())
