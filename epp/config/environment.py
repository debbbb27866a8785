"""Keys of `epp.yaml` from environment variables: ``EPP__POLICY__NAME`` is `policy.name`, above the file's.

Two underscores: by ``EPP_`` alone begins what Kubernetes sets for a Service of the name `epp`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args, get_origin

import msgspec

from epp.config.renamed import rename_words
from epp.config.schema import Config
from epp.config.strict import alternatives, load_yaml
from epp.errors import ConfigError, gather

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PREFIX, SEPARATOR = "EPP__", "__"


def variable(key: str) -> str:
    """Name the variable of a dotted key."""
    return PREFIX + key.upper().replace(".", SEPARATOR)


def without(environment: Mapping[str, str], keys: Iterable[str]) -> dict[str, str]:
    """Leave out the variables of dotted keys, and of what is in them."""
    names = [variable(key) for key in keys]
    return {
        name: text
        for name, text in environment.items()
        if not any(name == above or name.startswith(above + SEPARATOR) for above in names)
    }


class Overlay:
    """The variables that set keys.

    Args:
        environment: all variables.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        names = [name for name in environment if name.startswith(PREFIX)]
        #: From the outermost key on, so that what a section's key says wins over the section's.
        self._texts = {
            rename_words(tuple(name.removeprefix(PREFIX).lower().split(SEPARATOR))): environment[name]
            for name in sorted(names, key=lambda name: (name.count(SEPARATOR), name))
        }

    def lay(self, value: object, errors: list[ConfigError]) -> object:
        """Set the keys in a file's plain values, in place; what is no YAML is added to ``errors``."""
        if not isinstance(value, dict):
            return value
        for words, text in self._texts.items():
            section = value
            for word in words[:-1]:
                if not isinstance(section.get(word), dict):
                    section[word] = {}
                section = section[word]
            with gather(errors):
                section[words[-1]] = text if _is_text(words) else load_yaml(text, _source(words))
        return value

    def named(self, error: ConfigError) -> ConfigError:
        """Let an error name the variable that it is about instead of the file, if it is about one."""
        for words in self._texts:
            key = ".".join(words)
            inside = f"{error.key}.".startswith(f"{key}.")
            if inside or (error.problem == "unknown key" and key.startswith(f"{error.key}.")):
                return ConfigError(_source(words), error.key, error.problem, error.fix)
        return error


def _source(words: tuple[str, ...]) -> str:
    return f"environment variable {variable('.'.join(words))}"


def _is_text(words: tuple[str, ...]) -> bool:
    """Whether a key takes nothing but a text, which needs no quotes then."""
    kinds: tuple[object, ...] = (Config,)
    for word in words:
        kinds = tuple(option for kind in kinds for option in _inner(kind, word))
    return bool(kinds) and all(kind is str or get_origin(kind) is Literal for kind in kinds)


def _inner(kind: object, word: str) -> tuple[object, ...]:
    """List the types that a key may have in a section or mapping."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
        return alternatives(fields[word]) if word in fields else ()
    return alternatives(get_args(kind)[1]) if get_origin(kind) is dict else ()
