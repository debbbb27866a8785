"""From a folder or a hub id to a `TokenizerModel`, with errors that name the key and the fix.

Owns what files a model has: ``tokenizer.json``, ``tokenizer_config.json``, ``chat_template.jinja``. Models
that ship only SentencePiece's ``tokenizer.model``, ``tekken.json`` or tiktoken ranks have to be converted
first (transformers' ``save_pretrained`` writes ``tokenizer.json`` for most).
"""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epp.errors import ConfigError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from epp.config.schema import ModelTokenizer
    from epp.tokenizer.model import TokenizerModel
    from epp.tokenizer.template import ChatTemplate

log = logging.getLogger(__name__)

INSTALL = "pip install 'gorgo-epp[tokenizers]'"
#: ``chat_template: none`` says that a model is not for chats.
NO_TEMPLATE = "none"

_TOKENIZER, _CONFIG, _TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_OTHER_FORMATS = ("tekken.json", "tokenizer.model", "vocab.json", "qwen.tiktoken", "tiktoken.model")
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


def load_model(name: str, section: ModelTokenizer, base: Path, source: str) -> TokenizerModel:
    """A model's tokenizer, ready to count.

    Args:
        name: public name of the model.
        section: where its files are and how it is counted.
        base: folder that relative paths are relative to.
        source: name of the configuration file, for errors.

    Raises:
        ConfigError: a package or a file is missing, or cannot be used.
    """
    key = f"tokens.models.{name}"
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415  # optional: only configured models need it

        from epp.tokenizer.fast import fast_encoder  # noqa: PLC0415
        from epp.tokenizer.model import TokenizerModel  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(source, key, f"tokenizers cannot be imported: {error}", INSTALL) from error
    files = _Files(section, base, source, key)
    path = files.tokenizer()
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain exceptions
        raise ConfigError(
            source, f"{key}.source", f"{path} is no tokenizer: {error}", "is the download complete?"
        ) from error
    config = files.config()
    constants = {word: text for word in _SPECIAL if (text := _special_text(config.get(word)))}
    template = _template(section, files, config=config, constants=constants, source=source, key=key)
    return TokenizerModel(
        tokenizer,
        template=template,
        markers=_markers(tokenizer, template, constants),
        cache_bytes=section.cache_bytes,
        fast=fast_encoder(tokenizer, path) if section.fast else None,
    )


class _Files:
    """A model's files, in a folder or on the hub."""

    def __init__(self, section: ModelTokenizer, base: Path, source: str, key: str) -> None:
        self._section, self._base, self._source, self._key = section, base, source, f"{key}.source"
        self._local: Path | None = base / section.source
        if not self._local.exists():
            if not _HUB_ID.fullmatch(section.source):
                raise ConfigError(
                    source, self._key, f"{self._local} does not exist", "give a folder or a hub id"
                )
            log.info(
                "%s: %s does not exist; %s is looked for at the hub", self._key, self._local, section.source
            )
            self._local = None

    def tokenizer(self) -> Path:
        """The file that must be there."""
        if self._local is not None and self._local.is_file():
            return self._local
        found = self.find(_TOKENIZER)
        if found is not None:
            return found
        where = self._section.source
        others = [name for name in _OTHER_FORMATS if self._local and (self._local / name).exists()]
        fix = "give the folder that holds it"
        if others:
            fix = f"{others[0]} is not read; convert it, e.g. with transformers' save_pretrained"
        raise ConfigError(self._source, self._key, f"{where} has no {_TOKENIZER}", fix)

    def config(self) -> dict[str, Any]:
        """What ``tokenizer_config.json`` says, nothing when there is none."""
        path = self.find(_CONFIG)
        if path is None:
            return {}
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(
                self._source, self._key, f"{path}: {error}", "the file must be valid JSON"
            ) from error
        return config if isinstance(config, dict) else {}

    def beside(self, name: str) -> Path:
        """A file that the configuration names."""
        return self._base / name

    def find(self, name: str) -> Path | None:
        """One of the files, None when the model has none of that name."""
        if self._local is not None:
            folder = self._local if self._local.is_dir() else self._local.parent
            return folder / name if (folder / name).is_file() else None
        return self._download(name)

    def _download(self, name: str) -> Path | None:
        try:
            from huggingface_hub import hf_hub_download  # noqa: PLC0415  # optional
            from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError  # noqa: PLC0415
        except ImportError as error:
            raise ConfigError(
                self._source, self._key, f"hub ids need huggingface_hub: {error}", INSTALL
            ) from error
        logging.getLogger("huggingface_hub").handlers.clear()  # it would say all a second time
        revision = self._section.revision or None
        try:
            return Path(hf_hub_download(self._section.source, name, revision=revision))
        except EntryNotFoundError as error:
            if isinstance(error, LocalEntryNotFoundError):  # the hub could not be asked
                raise self._unreachable(name, error) from error
            return None
        except Exception as error:  # the library passes its HTTP client's errors on
            raise self._unreachable(name, error) from error

    def _unreachable(self, name: str, error: Exception) -> ConfigError:
        words = str(error).splitlines()[0] if str(error) else type(error).__name__
        return ConfigError(
            self._source,
            self._key,
            f"{self._section.source} is no folder, and {name} cannot be had from the hub: {words}",
            "download it once and give the folder",
        )


def _special_text(value: Any) -> str:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else ""


def _template(
    section: ModelTokenizer,
    files: _Files,
    *,
    config: dict[str, Any],
    constants: dict[str, str],
    source: str,
    key: str,
) -> ChatTemplate | None:
    """The configured file, else ``chat_template.jinja``, else what ``tokenizer_config.json`` holds."""
    key = f"{key}.chat_template"
    if section.chat_template == NO_TEMPLATE:
        return None
    try:
        from epp.tokenizer.template import ChatTemplate  # noqa: PLC0415  # optional
    except ImportError as error:
        raise ConfigError(source, key, f"Jinja cannot be imported: {error}", INSTALL) from error
    path = files.beside(section.chat_template) if section.chat_template else files.find(_TEMPLATE)
    plain, tools, where = "", "", str(path)
    if path is not None:
        try:
            plain = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(source, key, str(error), "give a file with a Jinja template") from error
    else:
        plain, tools = _templates_of(config.get("chat_template"))
        where = f"{section.source}/{_CONFIG}"
    if not plain:
        raise ConfigError(
            source,
            key,
            f"{section.source} has no chat template",
            f"name a file with one, or write {NO_TEMPLATE!r} for a model that takes no chats",
        )
    try:
        return ChatTemplate(plain, tools, constants)
    except ValueError as error:
        raise ConfigError(source, key, f"{where} is no template: {error}", "correct it") from error


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
