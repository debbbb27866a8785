"""Write docs/configuration.md from the schema: every key, its type, default and meaning.

python tools/gen_config_docs.py [--check]
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.inspect import ListType, Metadata, StructType, UnionType, type_info

from epp.config.load import WeightsFile
from epp.config.pool import PoolFile
from epp.config.schema import Config
from epp.learn.tuner.settings import TunerKeys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from msgspec.inspect import Field, Type

TARGET = Path(__file__).parent.parent / "docs" / "configuration.md"
HEAD = """# Configuration

`epp serve --config epp.yaml`. Everything has a default; an empty file is a valid configuration. Unknown keys
are errors. All errors are reported at once, those in the files that the configuration names included: a line
each with the file, the key and what to write instead. Paths are relative to the configuration file.

This page is generated from the schema by `python tools/gen_config_docs.py`; a test keeps it fresh.
"""
WEIGHTS_NOTE = (
    "Watched. The first belongs to the tuner, the second to you; yours wins, value by value. A torn, invalid "
    "or out-of-bounds file keeps the last good values, says so once, and sets `epp_file_ok` to 0."
)
FILES = (
    ("epp.yaml", Config, "Read at start."),
    (
        "The endpoints file (`pool.file`)",
        PoolFile,
        "Watched. An unusable file keeps the last good pool; an explicit `endpoints: []` empties it.",
    ),
    (
        "The weights files (`weights_file`, `overrides_file`)",
        WeightsFile,
        WEIGHTS_NOTE,
    ),
    (
        "The tuner's settings (`epp tune --settings`)",
        TunerKeys,
        "Read when a command starts. What the words mean: [docs/tuner.md](tuner.md).",
    ),
)


def main() -> int:
    """Write the page, or with --check say whether it is fresh."""
    text = render()
    if "--check" in sys.argv[1:]:
        return 0 if TARGET.exists() and TARGET.read_text() == text else 1
    TARGET.write_text(text)
    return 0


def render() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, kind, note in FILES:
        parts.append(f"\n## {title}\n\n{note}\n\n| key | type | default | meaning |\n|---|---|---|---|\n")
        parts += rows(kind, "", {})
    return "".join(parts)


def rows(kind: type, prefix: str, listed: dict[type, str]) -> Iterator[str]:
    """One row per key, sections inlined once; ``listed`` has those that were."""
    info = type_info(kind)
    if not isinstance(info, StructType):
        raise TypeError(f"{kind} is not a section")
    meanings = attributes(kind.__doc__ or "")
    for field in info.fields:
        key = f"{prefix}{field.encode_name}"
        inner, suffix = section_of(field.type)
        if inner is not None:
            same = next((known for known in listed if issubclass(known, inner)), None)
            if same is not None:
                note = f"{meanings.get(field.encode_name, '')} Its keys are those of `{listed[same]}`."
                yield f"| `{key}` | section | {default(field)} | {note} |\n"
                continue
            listed[inner] = key
            if suffix or isinstance(field.type, UnionType):
                note, word = meanings.get(field.encode_name, ""), "list of sections" if suffix else "section"
                yield f"| `{key}` | {word} | {default(field)} | {note} |\n"
            yield from rows(inner, f"{key}{suffix}.", listed)
            continue
        meaning = meanings.get(field.encode_name, "")
        yield f"| `{key}` | {spelled(field.type)} | {default(field)} | {meaning} |\n"


def options(info: Type) -> tuple[Type, ...]:
    """The alternatives of a union, or the type itself."""
    found = info.types if isinstance(info, UnionType) else (info,)
    return tuple(option.type if isinstance(option, Metadata) else option for option in found)


def section_of(info: Type) -> tuple[type | None, str]:
    """The section that a field holds, and ``[]`` when it holds a list of them."""
    for option in options(info):
        if isinstance(option, StructType):
            return option.cls, ""
        if isinstance(option, ListType) and isinstance(option.item_type, StructType):
            return option.item_type.cls, "[]"
    return None, ""


def spelled(info: Type) -> str:
    """A type in words."""
    names = {
        "StrType": "text",
        "IntType": "whole number",
        "FloatType": "number",
        "BoolType": "true or false",
        "NoneType": "nothing",
        "ListType": "list",
        "DictType": "mapping",
        "LiteralType": "one of a few words",
        "VarTupleType": "list",
        "TupleType": "pair",
    }
    words = [names.get(type(option).__name__, type(option).__name__) for option in options(info)]
    return " or ".join(word for word in words if word != "nothing")


def default(field: Field) -> str:
    """A default as it would be written in YAML."""
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else None
    if field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    if isinstance(value, msgspec.Struct) or value is None:
        return "none"
    return f"`{msgspec.json.encode(value).decode()}`" if value != "" else "none"


def attributes(docstring: str) -> dict[str, str]:
    """The Attributes section of a docstring, by name."""
    _, _, section = docstring.partition("Attributes:\n")
    found: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        start = re.match(r" {8}(\w+): (.*)", line)
        if start:
            name = start[1]
            found[name] = start[2].strip()
        elif name and line.strip():
            found[name] += " " + line.strip()
    return {name: text.replace("``", "`").replace("|", "\\|") for name, text in found.items()}


if __name__ == "__main__":
    sys.exit(main())
