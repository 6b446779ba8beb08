"""The Python side of a task: which task names a wrapper method registers, and how many tensors it attaches."""

from __future__ import annotations

import ast
from typing import NamedTuple

from conformance.drift.finding import Evidence
from conformance.drift.locate.python import Function, PythonSource, argument, called


class Registration(NamedTuple):
    """One task name that a wrapper can register. `inputs`: `new_input` calls on the same threadblock graph."""

    task: str
    wrapper: str
    inputs: int
    optional: int  #: how many of them are attached under a condition
    grid: tuple[str, ...]  #: grid_dim's parts as written in the wrapper; empty where the caller gives it
    evidence: Evidence


def registrations(source: PythonSource) -> list[Registration]:
    """Every task name registered, literal names followed through one helper and through `a if c else b`."""
    found: list[Registration] = []
    for function in source.functions():
        for call in source.calls("register_task", function):
            if _owner(source, call) is not function or len(call.args) < 2:
                continue
            graph = ast.unparse(call.args[0])
            inputs, optional = _inputs(source, function, graph, call)
            grid = _grid(source, function)
            for name, where, wrapper in _names(source, function, call.args[1]):
                found.append(Registration(name, wrapper, inputs, optional, grid, source.evidence(where)))
    return sorted(set(found))


def _owner(source: PythonSource, node: ast.AST) -> ast.AST | None:
    return next((parent for parent in source.parents(node) if isinstance(parent, Function)), None)


def _inputs(source: PythonSource, function: Function, graph: str, registered: ast.Call) -> tuple[int, int]:
    """Calls of GRAPH.new_input in the function since GRAPH was last assigned before the registration: how many, and
    how many of them stand under a condition that the registration does not stand under."""
    made = [a.lineno for a in source.assignments(graph, function) if a.lineno <= registered.lineno]
    since = max(made, default=0)
    above = {id(parent) for parent in source.parents(registered)}
    attached = [
        call
        for call in source.calls("new_input", function)
        if since <= call.lineno <= registered.lineno
        and isinstance(call.func, ast.Attribute)
        and ast.unparse(call.func.value) == graph
    ]
    optional = [c for c in attached if any(isinstance(p, ast.If) and id(p) not in above for p in source.parents(c))]
    return len(attached), len(optional)


def _grid(source: PythonSource, function: Function) -> tuple[str, ...]:
    assigned = source.assignments("grid_dim", function)
    if len(assigned) == 1 and isinstance(assigned[0].value, ast.Tuple):
        return tuple(ast.unparse(part) for part in assigned[0].value.elts)
    return ()


def _names(source: PythonSource, function: Function, value: ast.expr) -> list[tuple[str, ast.AST, str]]:
    """(task name, where it is written, wrapper) for the second argument of register_task."""
    match value:
        case ast.Constant(value=str(text)):
            return [(text, value, function.name)]
        case ast.IfExp():
            return [*_names(source, function, value.body), *_names(source, function, value.orelse)]
        case ast.Name(id=name):
            if assigned := source.assignments(name, function):
                return [n for a in assigned if a.value is not None for n in _names(source, function, a.value)]
            parameters = [a.arg for a in function.args.args]
            if name in parameters:
                return _from_callers(source, function, name, parameters.index(name) - (parameters[0] == "self"))
    return []


def _from_callers(source: PythonSource, helper: Function, name: str, position: int) -> list[tuple[str, ast.AST, str]]:
    found: list[tuple[str, ast.AST, str]] = []
    for caller in source.functions():
        for call in source.calls(helper.name, caller):
            if _owner(source, call) is caller and caller is not helper:
                value = argument(call, name, position)
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    found.append((value.value, value, caller.name))
    return found


def layers_called(source: PythonSource) -> dict[str, list[ast.Call]]:
    """`self.mpk.X_layer(...)` calls of a builder, by X_layer."""
    found: dict[str, list[ast.Call]] = {}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and called(node).endswith("_layer") and "mpk." in ast.unparse(node.func):
            found.setdefault(called(node), []).append(node)
    return {name: sorted(calls, key=lambda c: c.lineno) for name, calls in sorted(found.items())}
