"""Strict decoding of YAML or JSON text into msgspec structs.

Owns how errors in a file are reported, all at once: the file, the dotted key, what is wrong and, for a
misspelt key, the nearest right one. Never reads a disk; callers bring the text.
"""

from __future__ import annotations

import difflib
import re
import types
from typing import TYPE_CHECKING, Annotated, Generic, TypeVar, Union, get_args, get_origin

import msgspec
import yaml

from epp.errors import MOST_ERRORS, ConfigError, raise_all

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")

_WRONG_TYPE = re.compile(r"Expected `(?P<wanted>[^`]*)`, got `(?P<got>[^`]*)`")
#: What to write where something else stands: `100ms`, `32MiB`, `1e6` (a text in YAML), `"yes"`, nothing.
_FIXES = {
    "int": "a whole number in digits, without a unit, e.g. 1000",
    "float": "a number without a unit, e.g. 2.5; an exponent takes a point and a sign, e.g. 1.0e-5",
    "bool": "true or false, without quotes",
    "array": "a list, e.g. [a, b]",
    "object": "keys and values, e.g. {name: value}",
    "str": 'a text, in quotes where it looks like something else, e.g. "1"',
}
_MISSING = "Object missing required field"

_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.CSafeLoader):
    """YAML 1.1 safe loader that refuses duplicate keys: the last one winning silently hides a mistake."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[object, object]:
    seen: set[object] = set()
    for key_node, _ in node.value:
        if key_node.tag == _MERGE:  # `<<: *others`; what stands here goes before what it brings
            continue
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise yaml.constructor.ConstructorError(
                None, None, f"key {key!r} is not text; quote it", key_node.start_mark
            )
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key!r}", key_node.start_mark)
        seen.add(key)
    loader.flatten_mapping(node)
    return {
        loader.construct_object(k, deep=True): loader.construct_object(v, deep=True) for k, v in node.value
    }


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def load_yaml(text: str | bytes, source: str) -> object:
    """YAML (or JSON) text to plain values.

    Raises:
        ConfigError: the text is not YAML, or repeats a key.
    """
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506  # a subclass of the safe loader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(source, "", f"{where}{problem}", "the file must be valid YAML") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            source, "", str(error) or "nested too deeply", "the file must be valid YAML"
        ) from error


def positions(text: str | bytes, keys: Sequence[str]) -> list[str]:
    """Say where dotted keys stand in a text, or what is there of the way to them: `line 3, column 5: `."""
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError:
        root = None
    return [_position(root, key) for key in keys]


def _position(node: yaml.Node | None, key: str) -> str:
    found = ""
    while node is not None and key:
        if isinstance(node, yaml.SequenceNode):
            parts = {f"[{place}]": (item, item) for place, item in enumerate(node.value)}
        else:
            pairs = node.value if isinstance(node, yaml.MappingNode) else ()
            parts = {name.value: (name, value) for name, value in pairs}
        # A name may have dots in it.
        begun = [name for name in parts if key == name or key.startswith((f"{name}.", f"{name}["))]
        if not begun:
            break
        name = max(begun, key=len)
        at, node = parts[name]
        key = key.removeprefix(name).removeprefix(".")
        found = f"line {at.start_mark.line + 1}, column {at.start_mark.column + 1}: "
    return found


def decode(text: str | bytes, kind: type[T], source: str) -> T:
    """Text to a value of a msgspec type; an empty file counts as an empty mapping.

    Raises:
        ConfigError: naming the file, the key and the fix of each error.
    """
    return convert(loaded(text, source), kind, source)


def convert(value: object, kind: type[T], source: str, key: str = "") -> T:
    """Plain values, as a file spells them, to a value of a msgspec type.

    Args:
        value: plain values.
        kind: the msgspec type.
        source: name of the file, for errors.
        key: where they stand in it.

    Raises:
        ConfigError: naming the file, the key and the fix of each error.
    """
    found = Salvaged(value, kind, source, key)
    raise_all(found.errors)
    assert found.value is not None  # noqa: S101  # nothing was left out
    return found.value


def salvage(text: str | bytes, kind: type[T], source: str) -> Salvaged[T]:
    """Text to what can be used of it, and to its errors, for callers with further checks to make.

    Raises:
        ConfigError: the text is not YAML.
    """
    return Salvaged(loaded(text, source), kind, source)


def loaded(text: str | bytes, source: str) -> object:
    """Text to plain values, an empty mapping for an empty file.

    Raises:
        ConfigError: the text is not YAML.
    """
    value = load_yaml(text, source)
    return {} if value is None else value


class _Wrong:
    """Stands for what cannot be used."""


class Salvaged(Generic[T]):
    """Plain values converted, each error left out and reported.

    Args:
        value: plain values, as a file spells them.
        kind: the msgspec type.
        source: name of the file, for errors.
        key: where they stand in it.

    Attributes:
        value: what is left, None when that is not of the type.
        errors: what is wrong, in the file's order.
        left_out: dotted keys of the values that `value` lacks; unknown keys are not among them.
    """

    def __init__(self, value: object, kind: type[T], source: str, key: str = "") -> None:
        self._source = source
        self.errors: list[ConfigError] = []
        self.left_out: set[str] = set()
        left = self._part(value, kind, key)
        self.value: T | None = None if left is _Wrong else msgspec.convert(left, kind)

    def _part(self, value: object, kind: object, key: str) -> object:
        """The value without what is wrong in it, or `_Wrong`.

        msgspec stops at the first error, so its parts are converted one by one.
        """
        if not _refusal(value, kind):
            return value
        if len(self.errors) > MOST_ERRORS:
            return _Wrong
        lost = len(self.left_out)
        left = self._parts(value, kind, key)
        refusal = _refusal(left, kind)
        if not refusal:
            return left
        # That something is missing which was left out, or reported as missing, is no other error.
        if len(self.left_out) == lost and not refusal.startswith(_MISSING):
            self.errors += _explain(refusal, kind, self._source, key)
        self.left_out.add(key)
        return _Wrong

    def _parts(self, value: object, kind: object, key: str) -> object:
        for option in alternatives(kind):
            if isinstance(value, dict) and isinstance(option, type) and issubclass(option, msgspec.Struct):
                return self._fields(value, option, key)
            items = get_args(option)
            if isinstance(value, dict) and get_origin(option) is dict:
                parts = {name: self._part(part, items[1], _join(key, name)) for name, part in value.items()}
                return {name: part for name, part in parts.items() if part is not _Wrong}
            if isinstance(value, list) and get_origin(option) is list:
                listed = [self._part(part, items[0], f"{key}[{place}]") for place, part in enumerate(value)]
                return [part for part in listed if part is not _Wrong]
        return value

    def _fields(self, value: dict[str, object], kind: type[msgspec.Struct], key: str) -> object:
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        left = {}
        for name, part in value.items():
            if name in fields:
                left[name] = self._part(part, fields[name].type, _join(key, name))
                continue
            near = difflib.get_close_matches(name, fields, n=1, cutoff=0.5)
            fix = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(fields))}"
            self.errors.append(ConfigError(self._source, _join(key, name), "unknown key", fix))
        for name, field in fields.items():
            if field.required and name not in value:
                self.errors.append(ConfigError(self._source, key, f"missing required field {name!r}"))
        return {name: part for name, part in left.items() if part is not _Wrong}


def _refusal(value: object, kind: object) -> str:
    """The error of msgspec for a value, empty when it is of the type."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        return str(error)
    return ""


def _explain(text: str, kind: object, source: str, key: str) -> list[ConfigError]:
    """The errors of a value whose parts are right; a section's own check may find several."""
    problem, _, path = text.partition(" - at `$")
    path = path.removesuffix("`")
    fix = _fix(problem, kind)
    if fix and "matching regex" in problem:
        problem = "no such value"  # the fix says in words what the expression does
    problem = problem.replace("`", "'").replace("Expected", "expected")
    return [
        ConfigError(source, f"{key}{path}".removeprefix("."), line[0].lower() + line[1:], fix)
        for line in problem.splitlines()
    ]


def _fix(problem: str, kind: object) -> str:
    """What to write instead, where the type shows it."""
    info = msgspec.inspect.type_info(kind)
    if problem.startswith("Invalid enum value"):
        words = [
            repr(word) if word == "" else str(word)
            for option in _union(info)
            if isinstance(option, msgspec.inspect.LiteralType)
            for word in option.values
        ]
        return f"one of: {', '.join(words)}"
    wrong = _WRONG_TYPE.match(problem)
    wanted = wrong["wanted"].split(" | ") if wrong else []
    usual = "; or ".join(_FIXES[name] for name in wanted if name in _FIXES)
    if wrong and wrong["got"] == "str":
        return usual
    metas = (option for option in _union(info) if isinstance(option, msgspec.inspect.Metadata))
    return next((str(meta.extra["fix"]) for meta in metas if meta.extra), usual)


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def alternatives(kind: object) -> tuple[object, ...]:
    """The alternatives of an annotation, or itself, without what is stated beside it."""
    if get_origin(kind) is Annotated:
        return alternatives(get_args(kind)[0])
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _union(info: msgspec.inspect.Type) -> tuple[msgspec.inspect.Type, ...]:
    return info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
