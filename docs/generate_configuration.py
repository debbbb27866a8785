"""Write docs/configuration.md from the schema: every key, its default or type, and meaning.

python -m docs.generate_configuration
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.inspect import ListType, Metadata, StructType, UnionType, type_info

from epp.config.load import WeightsFile
from epp.config.pool import PoolFile
from epp.config.schema import Config
from epp.server.reload import LIVE
from epp_lab.reward_model.settings import LearnerKeys
from epp_lab.tuner.settings import TunerKeys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from msgspec.inspect import Field, Type

TARGET = Path(__file__).parent / "configuration.md"
HEAD = """# Configuration

Check a configuration with `epp config check epp.yaml`, and serve with `epp serve --config epp.yaml`. An empty
file is valid. Unknown keys are errors; all errors are reported at once. Paths are relative to the file. A key
without a default shows its type instead. "Render Envoy again": with `epp envoy render`, after a change.

An environment variable can set every key of `epp.yaml`: `EPP__POLICY__NAME=gorgo` sets `policy.name`. Values
are YAML. A flag wins over a variable, a variable over the file.
"""
WEIGHTS_NOTE = (
    "Watched; [weights.md](weights.md) says who writes them. While a file is torn, invalid or out of "
    "bounds, the last good values stay in force, also over a restart; the log says so once, and "
    "`epp_file_ok` is 0."
)
LIVE_NOTE = (
    f"Watched. {', '.join(f'`{key}`' for key in LIVE)} change in a running picker. Any other "
    "changed key waits for a restart, and the log names it. A file with errors changes nothing."
)
FILES = (
    ("epp.yaml", Config, LIVE_NOTE),
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
    (
        "The learner's settings (`epp learn --settings`)",
        LearnerKeys,
        "Read when the command starts. What the words mean: [docs/learner.md](learner.md).",
    ),
)


def render() -> str:
    """Render the whole page."""
    parts = [HEAD]
    for title, kind, note in FILES:
        parts.append(f"\n## {title}\n\n{note}\n\n| key | default | meaning |\n|---|---|---|\n")
        parts += rows(kind, "", {TunerKeys: "epp tune --settings"} if kind is LearnerKeys else {})
    return "".join(parts)


def rows(kind: type, prefix: str, listed: dict[type, str]) -> Iterator[str]:
    """List one row per key, sections inlined once; ``listed`` has those that were."""
    info = type_info(kind)
    if not isinstance(info, StructType):
        raise TypeError(f"{kind} is not a section")
    meanings: dict[str, str] = {}
    told = {base: key for known, key in listed.items() if known is not kind for base in known.__mro__[1:]}
    left_out: set[str] = set()
    for base in reversed(kind.__mro__):
        meanings |= (own := attributes(base.__doc__ or ""))
        if own and base in told:
            left_out |= own.keys()
            yield f"| `{prefix}{next(iter(own))}` to `{list(own)[-1]}` | | as in `{told[base]}`. |\n"
    for field in info.fields:
        if field.encode_name in left_out:
            continue
        key = f"{prefix}{field.encode_name}"
        inner, suffix = section_of(field.type)
        if inner is not None:
            same = next((known for known in listed if issubclass(known, inner)), None)
            if same is not None:
                note = f"{meanings.get(field.encode_name, '')} Its keys are those of `{listed[same]}`."
                yield f"| `{key}` | section | {note} |\n"
                continue
            listed[inner] = key
            if suffix or isinstance(field.type, UnionType):
                note, word = meanings.get(field.encode_name, ""), "list of sections" if suffix else "section"
                yield f"| `{key}` | {default(field) or word} | {note} |\n"
            yield from rows(inner, f"{key}{suffix}.", listed)
            continue
        meaning = meanings.get(field.encode_name, "")
        yield f"| `{key}` | {default(field) or spelled(field.type)} | {meaning} |\n"


def options(info: Type) -> tuple[Type, ...]:
    """List the alternatives of a union, or the type itself."""
    found = info.types if isinstance(info, UnionType) else (info,)
    return tuple(option.type if isinstance(option, Metadata) else option for option in found)


def section_of(info: Type) -> tuple[type | None, str]:
    """Find the section that a field holds, and ``[]`` when it holds a list of them."""
    for option in options(info):
        if isinstance(option, StructType):
            return option.cls, ""
        if isinstance(option, ListType) and isinstance(option.item_type, StructType):
            return option.item_type.cls, "[]"
    return None, ""


def spelled(info: Type) -> str:
    """Spell a type in words."""
    names = {
        "StrType": "string",
        "IntType": "integer",
        "FloatType": "number",
        "BoolType": "boolean",
        "NoneType": "",
        "ListType": "list",
        "DictType": "mapping",
        "LiteralType": "enum",
        "VarTupleType": "list",
    }
    return " or ".join(filter(None, (names[type(option).__name__] for option in options(info))))


def default(field: Field) -> str:
    """Spell a default as it would be written in YAML, ``""`` where there is none to spell."""
    if field.required:
        return f"required {spelled(field.type)}"
    value = field.default if field.default is not msgspec.NODEFAULT else None
    if field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    if isinstance(value, msgspec.Struct) or value is None:
        return ""
    return f"`{msgspec.json.encode(value).decode()}`" if value != "" else ""


def attributes(docstring: str) -> dict[str, str]:
    """Read the Attributes section of a docstring, by name."""
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
    TARGET.write_text(render())
