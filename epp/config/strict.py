"""Strict decoding of YAML or JSON text into msgspec structs.

Owns how a mistake in a file is told: the file, the dotted key, what is wrong and, for a misspelt key, the
nearest right one. Never reads a disk; callers bring the text.
"""

from __future__ import annotations

import difflib
import re
from typing import TypeVar

import msgspec
import yaml

from epp.errors import ConfigError

T = TypeVar("T")

_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>[^`]*)`(?: - at `(?P<path>[^`]*)`)?")
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
_AT = re.compile(r"(?P<problem>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)


_MERGE = "tag:yaml.org,2002:merge"
#: Sections within sections. Composing descends on the process's stack, and far enough down ends the process.
_MAX_DEPTH = 1000


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
        _check_depth(text)
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


def _check_depth(text: str | bytes) -> None:
    """Refuse what is nested too deeply to be read.

    Raises:
        RecursionError: it is.
        yaml.YAMLError: the text is not YAML.
    """
    if len(text) <= _MAX_DEPTH:  # a level takes a character at least
        return
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MAX_DEPTH:
                raise RecursionError("nested too deeply")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def decode(text: str | bytes, kind: type[T], source: str) -> T:
    """Text to a value of a msgspec type; an empty file counts as an empty mapping.

    Raises:
        ConfigError: naming the file, the key and the fix.
    """
    value = load_yaml(text, source)
    return convert({} if value is None else value, kind, source)


def convert(value: object, kind: type[T], source: str) -> T:
    """Plain values, as a file spells them, to a value of a msgspec type.

    Raises:
        ConfigError: naming the file, the key and the fix.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _explain(str(error), value, kind, source) from error


def _explain(text: str, value: object, kind: type, source: str) -> ConfigError:
    unknown = _UNKNOWN.match(text)
    if unknown:
        path, field = unknown["path"] or "$", unknown["field"]
        known = _fields_at(kind, path)
        path = _name_entry(path, text, value, kind)
        near = difflib.get_close_matches(field, known, n=1, cutoff=0.5)
        fix = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(known))}"
        return ConfigError(source, _dotted(path, field), "unknown key", fix)
    parts = _AT.match(text)
    problem, path = (parts["problem"], parts["path"] or "$") if parts else (text, "$")
    fix = _fix(problem, kind, path)
    path = _name_entry(path, text, value, kind)
    if fix and "matching regex" in problem:
        problem = "no such value"  # the fix says in words what the expression does
    problem = problem.replace("`", "'").replace("Object missing", "missing").replace("Expected", "expected")
    return ConfigError(source, _dotted(path), problem[0].lower() + problem[1:], fix)


def _fix(problem: str, kind: type, path: str) -> str:
    """What to write instead, where that can be told from the type."""
    if problem.startswith("Invalid enum value"):
        words = [word for option in _options(_type_at(kind, path)) for word in _words(option)]
        return f"one of: {', '.join(words)}" if words else ""
    wrong = _WRONG_TYPE.match(problem)
    wanted = wrong["wanted"].split(" | ") if wrong else []
    usual = "; or ".join(_FIXES[name] for name in wanted if name in _FIXES)
    if "object" in wanted and (known := _fields_at(kind, path)):
        usual = f"a section: keys under it, or leave it out; known keys: {', '.join(sorted(known))}"
    if (wrong and wrong["got"] == "str") or problem.startswith("Object"):
        return usual
    stated = (str(option.extra["fix"]) for option in _stated(_type_at(kind, path)) if option.extra)
    return next(stated, usual)


def _words(info: msgspec.inspect.Type) -> list[str]:
    if isinstance(info, msgspec.inspect.LiteralType):
        return [repr(word) if word == "" else str(word) for word in info.values]
    if isinstance(info, msgspec.inspect.EnumType):
        return [str(member.value) for member in info.cls]
    return []


def _name_entry(path: str, text: str, value: object, kind: type) -> str:
    """Msgspec writes ``[...]`` for any entry of a mapping: find which ones by trying them alone."""
    before, marker, after = path.partition("[...]")
    here = value
    for name, position in re.findall(r"\.([^.\[]+)|\[(\d+)\]", before):
        try:
            here = here[name or int(position)]  # type: ignore[index]  # failing is answered below
        except (KeyError, IndexError, TypeError):
            return path
    if not marker or not isinstance(here, dict):
        return path
    entries = dict(here)
    for name, entry in entries.items():
        here.clear()
        here[name] = entry
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            if str(error) == text:
                return _name_entry(f"{before}.{name}{after}", text, value, kind)
    return path


def _dotted(path: str, field: str = "") -> str:
    inner = path.removeprefix("$").removeprefix(".")
    return ".".join(part for part in (inner, field) if part)


def _fields_at(kind: object, path: str) -> list[str]:
    """Names of the keys that are allowed at a msgspec path such as ``$.pool.endpoints[...]``."""
    for option in _options(_type_at(kind, path)):
        if isinstance(option, msgspec.inspect.StructType):
            return [field.encode_name for field in option.fields]
    return []


def _type_at(kind: object, path: str) -> msgspec.inspect.Type:
    here = msgspec.inspect.type_info(kind)
    for step in re.findall(r"\.([^.\[]+)|(\[[^\]]*\])", path):
        here = _descend(here, step[0])
    return here


def _options(info: msgspec.inspect.Type) -> tuple[msgspec.inspect.Type, ...]:
    """The alternatives of a union, or the type itself, without what is stated beside them."""
    return tuple(
        option.type if isinstance(option, msgspec.inspect.Metadata) else option for option in _union(info)
    )


def _stated(info: msgspec.inspect.Type) -> list[msgspec.inspect.Metadata]:
    """Those alternatives that state a fix (`msgspec.Meta.extra`)."""
    return [option for option in _union(info) if isinstance(option, msgspec.inspect.Metadata)]


def _union(info: msgspec.inspect.Type) -> tuple[msgspec.inspect.Type, ...]:
    return info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)


def _descend(info: msgspec.inspect.Type, name: str) -> msgspec.inspect.Type:
    for option in _options(info):
        if name and isinstance(option, msgspec.inspect.StructType):
            for field in option.fields:
                if field.encode_name == name:
                    return field.type
        if not name and isinstance(option, msgspec.inspect.ListType | msgspec.inspect.VarTupleType):
            return option.item_type
        if isinstance(option, msgspec.inspect.DictType):
            return option.value_type
    return msgspec.inspect.AnyType()
