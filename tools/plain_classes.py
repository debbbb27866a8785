"""Dataclasses spelled out as plain classes: what a compiler of classes with known fields can do most with.

Owns the rewriting of one module's text. What comes out has the same fields, constructor, equality, hash and
representation, and works with `dataclasses.replace` and `fields`; frozen classes are no longer frozen, which
mypy has checked by then. A dataclass may inherit from another one of its module or imported by name. Refuses
what it does not know, so that nothing is rewritten by half.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_DECORATORS = ("dataclass", "fast_dataclass")
_IMPORTS = (
    "from typing import Any as _Any, ClassVar as _ClassVar",
    "from epp.compiled import fields_of as _fields_of",
)


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    type: str
    default: str = ""
    made: bool = False  # the default is called for each value

    @property
    def parameter(self) -> str:
        if self.made:
            return f"{self.name}: {self.type} | None = None"
        return f"{self.name}: {self.type}" + (f" = {self.default}" if self.default else "")

    @property
    def assignment(self) -> str:
        value = f"{self.default}() if {self.name} is None else {self.name}" if self.made else self.name
        return f"self.{self.name} = {value}"

    @property
    def described(self) -> str:
        return f"({self.name!r}, {self.default}, {self.made})" if self.default else f"({self.name!r},)"


@dataclass(frozen=True, slots=True)
class _Members:
    fields: list[_Field]
    methods: set[str]


def _of_no_other(module: str) -> str:
    raise ValueError(f"{module} is not at hand, so that what inherits from it is not spelled out")


def spelled_out(text: str, source_of: Callable[[str], str] = _of_no_other) -> str:
    """A module's text, its dataclasses as plain classes.

    Args:
        text: the module's.
        source_of: the text of a module by its name, for what dataclasses inherit from.

    Raises:
        ValueError: a dataclass has a base that is none, another decorator, or options that are not known
            here.
    """
    tree, edits = ast.parse(text), list[tuple[int, int, list[str]]]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and (decorator := _decorator(node)) is not None:
            edits += _edits(node, decorator, _inherited(node, tree, source_of))
    if not edits:
        return text
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            edits.append((statement.lineno, statement.lineno, list(_IMPORTS)))
    lines = text.split("\n")
    for first, last, new in sorted(edits, key=lambda edit: edit[:2], reverse=True):
        lines[first:last] = new
    # Names of fields, where the source asks for them by the slots that dataclasses make.
    return "\n".join(lines).replace(".__slots__", ".__dataclass_fields__")


def _decorator(node: ast.ClassDef) -> ast.expr | None:
    for one in node.decorator_list:
        named = one.func if isinstance(one, ast.Call) else one
        if isinstance(named, ast.Name) and named.id in _DECORATORS:
            return one
    return None


def _inherited(node: ast.ClassDef, tree: ast.Module, source_of: Callable[[str], str]) -> _Members:
    """Fields and methods of the dataclass that this one inherits from."""
    if not node.bases:
        return _Members([], set())
    base = node.bases[0]
    if len(node.bases) == 1 and isinstance(base, ast.Name):
        for statement in tree.body:
            if isinstance(statement, ast.ClassDef) and statement.name == base.id and _decorator(statement):
                above = _inherited(statement, tree, source_of)
                own = _own(statement)
                return _Members([*above.fields, *own.fields], above.methods | own.methods)
            if isinstance(statement, ast.ImportFrom) and base.id in [name.name for name in statement.names]:
                elsewhere = ast.parse(source_of(statement.module or ""))
                return _inherited(node, elsewhere, source_of)
    raise ValueError(f"{node.name} inherits from a class that is not spelled out")


def _own(node: ast.ClassDef) -> _Members:
    fields = [one for _, one in _declared(node)]
    return _Members(fields, {line.name for line in node.body if isinstance(line, ast.FunctionDef)})


def _declared(node: ast.ClassDef) -> list[tuple[ast.AnnAssign, _Field]]:
    lines = [
        line for line in node.body if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    ]
    return [(line, one) for line in lines if (one := _field(node.name, line)) is not None]


def _edits(node: ast.ClassDef, decorator: ast.expr, inherited: _Members) -> list[tuple[int, int, list[str]]]:
    options = decorator.keywords if isinstance(decorator, ast.Call) else []
    given = {option.arg: ast.unparse(option.value) for option in options}
    if len(node.decorator_list) != 1 or not set(given) <= {"frozen", "slots"}:
        raise ValueError(f"{node.name} is a dataclass of a kind that is not spelled out")
    indent = " " * (node.col_offset + 4)
    edits: list[tuple[int, int, list[str]]] = [(decorator.lineno - 1, decorator.end_lineno or 0, [])]
    above = {one.name for one in inherited.fields}
    for line, one in _declared(node):
        declared = [] if one.name in above else [f"{indent}{one.name}: {one.type}"]
        edits.append((line.lineno - 1, line.end_lineno or 0, declared))
    own = _own(node)
    made = "__post_init__" in own.methods | inherited.methods
    # A field that is given anew keeps its place, with the new default.
    fields = list({one.name: one for one in [*inherited.fields, *own.fields]}.values())
    added = _added(node.name, _Members(fields, own.methods), made, given)
    edits.append((node.end_lineno or 0, node.end_lineno or 0, [f"{indent}{line}" for line in added]))
    return edits


def _field(owner: str, line: ast.AnnAssign) -> _Field | None:
    kind, name = ast.unparse(line.annotation), ast.unparse(line.target)
    if kind.startswith("ClassVar"):
        return None
    if line.value is None:
        return _Field(name, kind)
    value = line.value
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "field":
        if [word.arg for word in value.keywords] != ["default_factory"] or value.args:
            raise ValueError(f"{owner}.{name} is a field of a kind that is not spelled out")
        return _Field(name, kind, ast.unparse(value.keywords[0].value), made=True)
    return _Field(name, kind, ast.unparse(value))


def _added(owner: str, known: _Members, made: bool, given: dict[str | None, str]) -> list[str]:
    """What the decorator would have added: ``known`` has all fields, and the methods of the class itself."""
    fields, methods = known.fields, known.methods
    described = ", ".join([repr(owner), *(one.described for one in fields)])
    lines = [f"__dataclass_fields__: _ClassVar[dict[str, _Any]] = _fields_of({described})"]
    mine, others = ("(" + "".join(f"{of}.{one.name}, " for one in fields) + ")" for of in ("self", "other"))
    if fields:
        lines += [f"def __init__(self, {', '.join(one.parameter for one in fields)}) -> None:"]
        lines += [f"    {one.assignment}" for one in fields]
        lines += ["    self.__post_init__()"] if made else []
    if "__eq__" not in methods:
        lines += [
            "def __eq__(self, other: object) -> bool:",
            f"    if not isinstance(other, {owner}) or type(other) is not type(self):",
            "        return NotImplemented",
            f"    return {mine} == {others}",
        ]
    if given.get("frozen") == "True" and "__hash__" not in methods:
        lines += ["def __hash__(self) -> int:", f"    return hash({mine})"]
    if "__repr__" not in methods:
        shown = ", ".join(f"{one.name}={{self.{one.name}!r}}" for one in fields)
        lines += ["def __repr__(self) -> str:", f"    return f{f'{owner}({shown})'!r}"]
    return lines
