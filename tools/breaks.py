"""Small breaks of one function, derived from its syntax tree: `make mutants` tries them (tools/mutants.py).

A break is an operator and a number: "negate 2" negates the second condition of the function. Numbers count in the order of
the source, nested functions included, so that names, comments and the lines around do not matter. The operators:

    drop        statement n is left out
    bare        `with` or `try` n is left out, and its body stays
    omit        item n is left out: of a call, a display, `and` or `or`, the conditions of a comprehension, the decorators
    swap        item n changes places with the next
    always      condition or result n is True
    never       condition or result n is False
    negate      condition n holds where it did not
    other       operator or function n is replaced by its counterpart: `<` by `<=`, `+` by `-`, `min` by `max`
    constant    constant n is another one: a number is larger by one, a truth value is negated, a text has one more word
    none        value n is None: an argument, a result, or what is assigned
    simplify    expression n is one of its parts: `a` or `b` for `a - b`, `x` for `f(x)`, `x.f()`, `x[i]` and `not x`
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterator
from typing import NamedTuple

COUNTERPARTS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.USub: ast.UAdd,
}
COUNTERPART_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign
Change = Callable[[], object]


class BreakError(Exception):
    """A function, or a break of it, that does not exist."""


class Place(NamedTuple):
    """Where a node is: in a field of its parent, and in a list there or not."""

    parent: ast.AST
    field: str
    at: int | None
    node: ast.AST

    def put(self, *new: ast.AST) -> Change:
        """The change that replaces the node; statements may be replaced by several or none."""

        def change() -> None:
            if self.at is None:
                setattr(self.parent, self.field, new[0])
            else:
                getattr(self.parent, self.field)[self.at : self.at + 1] = new
            if isinstance(self.node, ast.stmt) and not getattr(self.parent, self.field):
                setattr(self.parent, self.field, [ast.Pass()])

        return change


def definitions(body: list[ast.stmt], prefix: str = "", is_function: bool = False) -> Iterator[tuple[str, Definition]]:
    """The functions, classes and constants of a module under their dotted names, nested functions too."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield prefix + node.name, node
                yield from definitions(node.body, f"{prefix}{node.name}.", not isinstance(node, ast.ClassDef))
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) if not is_function:
                yield prefix + name, node
            case ast.If() | ast.Try() | ast.With() | ast.For() | ast.While():
                yield from definitions([*node.body, *getattr(node, "orelse", [])], prefix, is_function)


def definition(tree: ast.Module, name: str) -> Definition:
    """The definition of a dotted name, the last of several. Raises BreakError, which names the nearest."""
    found = dict(definitions(tree.body))
    if name not in found:
        near = difflib.get_close_matches(name, found, 1, 0.0)
        raise BreakError(f"there is no {name}" + (f"; the nearest is {near[0]}" if near else ""))
    return found[name]


def places(node: ast.AST) -> Iterator[Place]:
    """Each node below one, in the order of the source, without docstrings and annotations."""
    for field, value in ast.iter_fields(node):
        if field in {"annotation", "returns", "ctx", "type_params"}:
            continue
        several = isinstance(value, list)
        for index, child in enumerate(value if several else [value]):
            is_text = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            if isinstance(child, ast.AST) and not (is_text and field == "body"):
                yield Place(node, field, index if several else None, child)
                yield from places(child)


def lists_of_items(node: ast.AST) -> list[tuple[list[ast.AST], ...]]:
    """The lists of which an item may be left out: those of a dict are changed together."""
    match node:
        case ast.Call():
            return [(node.args,), (node.keywords,)]  # type: ignore[list-item]
        case ast.Tuple(ctx=ast.Load()) | ast.List(ctx=ast.Load()) | ast.Set():
            return [(node.elts,)]  # type: ignore[list-item]
        case ast.Dict():
            return [(node.keys, node.values)]  # type: ignore[list-item]
        case ast.BoolOp():
            return [(node.values,)]  # type: ignore[list-item]
        case ast.comprehension():
            return [(node.ifs,)]  # type: ignore[list-item]
        case ast.FunctionDef() | ast.ClassDef():
            return [(node.decorator_list,)]  # type: ignore[list-item]
    return []


def parts(node: ast.AST) -> list[ast.expr]:
    """The parts that may take an expression's place."""
    found: list[ast.expr] = []
    match node:
        case ast.BinOp():
            found = [node.left, node.right]
        case ast.IfExp():
            found = [node.body, node.orelse]
        case ast.UnaryOp(op=ast.Not()):
            found = [node.operand]
        case ast.Subscript(ctx=ast.Load()):
            found = [node.value]
        case ast.Call(func=ast.Attribute(value=owner)):
            found = [owner, *node.args[:1]]
        case ast.Call():
            found = node.args[:1]
    return [part for part in found if not isinstance(part, ast.Starred)]


def is_condition(place: Place) -> bool:
    """Is it what an `if`, a `while` or an `assert` tests?"""
    return place.field in {"test", "ifs"}


def is_result(place: Place) -> bool:
    """Is it what a function returns?"""
    return isinstance(place.parent, ast.Return)


def drop(place: Place) -> Iterator[Change]:
    """A statement is left out."""
    if isinstance(place.node, ast.stmt) and not isinstance(place.node, ast.Pass):
        yield place.put()


def bare(place: Place) -> Iterator[Change]:
    """The body of a statement takes its place."""
    if isinstance(place.node, ast.With | ast.Try):
        yield place.put(*place.node.body)


def omit(place: Place) -> Iterator[Change]:
    """An item is left out; `and` of one operand is the operand."""
    for together in lists_of_items(place.node):
        for index in range(len(together[0])):
            if isinstance(place.node, ast.BoolOp) and len(place.node.values) == 2:
                yield place.put(place.node.values[1 - index])
            else:
                yield lambda together=together, index=index: [items.pop(index) for items in together]  # type: ignore[misc]


def swap(place: Place) -> Iterator[Change]:
    """An item changes places with the next."""
    for together in lists_of_items(place.node):
        for index in range(len(together[0]) - 1):
            yield lambda together=together, index=index: [  # type: ignore[misc]
                items.insert(index, items.pop(index + 1)) for items in together
            ]


def always(place: Place) -> Iterator[Change]:
    """A condition or result is True."""
    if is_condition(place) or is_result(place):
        yield place.put(ast.Constant(True))


def never(place: Place) -> Iterator[Change]:
    """A condition or result is False."""
    if is_condition(place) or is_result(place):
        yield place.put(ast.Constant(False))


def negate(place: Place) -> Iterator[Change]:
    """A condition is negated."""
    if is_condition(place):
        yield place.put(ast.UnaryOp(ast.Not(), place.node))  # type: ignore[arg-type]


def other(place: Place) -> Iterator[Change]:
    """An operator or a function is its counterpart."""
    if type(place.node) in COUNTERPARTS:
        yield place.put(COUNTERPARTS[type(place.node)]())
    if isinstance(place.node, ast.Name) and place.node.id in COUNTERPART_FUNCTIONS:
        yield place.put(ast.Name(COUNTERPART_FUNCTIONS[place.node.id], ast.Load()))


def constant(place: Place) -> Iterator[Change]:
    """A constant is another one."""
    if isinstance(place.node, ast.Constant) and not isinstance(place.parent, ast.JoinedStr):
        match place.node.value:
            case bool(value):
                yield place.put(ast.Constant(not value))
            case int(number) | float(number):
                yield place.put(ast.Constant(number + 1))
            case str(text):
                yield place.put(ast.Constant(f"other {text}"))
            case None:
                yield place.put(ast.Constant(0))


def none(place: Place) -> Iterator[Change]:
    """A value is None."""
    is_argument = isinstance(place.parent, ast.Call | ast.keyword) and place.field in {"args", "value"}
    is_assigned = isinstance(place.parent, ast.Assign | ast.AnnAssign) and place.field == "value"
    if is_argument or is_assigned or is_result(place):
        yield place.put(ast.Constant(None))


def simplify(place: Place) -> Iterator[Change]:
    """An expression is one of its parts."""
    for part in parts(place.node):
        yield place.put(part)


OPERATORS: dict[str, Callable[[Place], Iterator[Change]]] = {
    operator.__name__: operator
    for operator in (drop, bare, omit, swap, always, never, negate, other, constant, none, simplify)
}


def changes(operator: str, node: Definition) -> list[Change]:
    """The changes by which an operator breaks a definition; one of them may be made."""
    return [change for place in places(node) for change in OPERATORS[operator](place)]


def names(source: str, function: str) -> list[str]:
    """All breaks of a function. Raises BreakError where it does not exist."""
    node = definition(ast.parse(source), function)
    return [f"{operator} {number + 1}" for operator in OPERATORS for number in range(len(changes(operator, node)))]


def broken(source: str, function: str, name: str) -> str:
    """The module's source with a break, without its comments. Raises BreakError where there is none of that name."""
    operator, _, number = name.partition(" ")
    if operator not in OPERATORS or not number.isdecimal():
        raise BreakError(f"a break must be a number after one of {', '.join(OPERATORS)}; got {name!r}")
    tree = ast.parse(source)
    possible = changes(operator, definition(tree, function))
    if not 1 <= int(number) <= len(possible):
        raise BreakError(f"{function} has {len(possible)} breaks {operator!r}; got {name!r}")
    possible[int(number) - 1]()
    return ast.unparse(ast.fix_missing_locations(tree))
