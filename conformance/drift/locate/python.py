"""Python sources by stdlib `ast`: functions by qualified name, calls, assignments."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, TypeVar

from conformance.drift.finding import Evidence, NotFound
from conformance.drift.locate.arithmetic import evaluate
from conformance.drift.locate.checkout import Checkout, SourceFile

Function = ast.FunctionDef | ast.AsyncFunctionDef
_T = TypeVar("_T")


class PythonSource:
    """One parsed file. Raises NotFound(unparsed) where it does not parse."""

    def __init__(self, file: SourceFile) -> None:
        self.file = file
        self.path = file.path
        try:
            self.tree = ast.parse(file.text)
        except (SyntaxError, ValueError, RecursionError) as error:
            line = getattr(error, "lineno", None) or 0
            raise NotFound("unparsed", f"{file.path}:{line}: does not parse: {error}") from None
        self._names: dict[int, str] = {}
        self._parents: dict[int, ast.AST] = {}
        self._index(self.tree, "")

    @classmethod
    def of(cls, checkout: Checkout, path: str) -> PythonSource:
        return cls(checkout.file(path))

    def _index(self, node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = name
            if isinstance(child, Function | ast.ClassDef):
                inner = f"{name}.{child.name}" if name else child.name
            self._names[id(child)] = inner
            self._parents[id(child)] = node
            self._index(child, inner)

    def evidence(self, node: ast.AST) -> Evidence:
        return self.file.evidence(getattr(node, "lineno", 1), self.qualname(node))

    def at(self, line: int) -> Evidence:
        """Evidence for a line, named by the innermost function around it."""
        around = [f for f in self.functions() if f.lineno <= line <= (f.end_lineno or f.lineno)]
        name = self.qualname(max(around, key=lambda f: f.lineno)) if around else ""
        return self.file.evidence(line, name)

    def resolve(self, node: ast.expr, names: Mapping[str, Any], scope: ast.AST | None = None) -> Any:
        """The value of an expression whose local names stand for what they were last assigned above it."""
        known = dict(names)
        for part in ast.walk(node):
            text = ast.unparse(part) if isinstance(part, ast.Name | ast.Attribute) else ""
            if text and text not in known:
                above = [value for at, value in self.values(text, scope) if at < node.lineno]
                if above:
                    known[text] = self.resolve(above[-1], known, scope)
        return evaluate(node, known)

    def values(self, target: str, scope: ast.AST | None = None) -> list[tuple[int, ast.expr]]:
        """(line, value) of what is assigned to `target`, in `a, b = x, y` too; in source order."""
        return [(node.lineno, value) for node, value in self._values.get(target, []) if _within(node, scope)]

    @cached_property
    def _values(self) -> dict[str, list[tuple[ast.stmt, ast.expr]]]:
        found: dict[str, list[tuple[ast.stmt, ast.expr]]] = {}
        for node in (n for n in ast.walk(self.tree) if isinstance(n, ast.Assign | ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=False))
                for part, value in pairs:
                    if value is not None:
                        found.setdefault(ast.unparse(part), []).append((node, value))
        return {text: sorted(pairs, key=lambda pair: pair[0].lineno) for text, pairs in found.items()}

    def qualname(self, node: ast.AST) -> str:
        return self._names.get(id(node), "")

    def parents(self, node: ast.AST) -> Iterator[ast.AST]:
        while (found := self._parents.get(id(node))) is not None:
            yield found
            node = found

    def function(self, qualname: str) -> Function:
        """Raises NotFound: anchor-absent, or ambiguous where the name is defined twice."""
        return self._one([n for n in self.functions() if self.qualname(n) == qualname], qualname)

    def functions(self, scope: ast.AST | None = None) -> list[Function]:
        return [node for node in ast.walk(scope or self.tree) if isinstance(node, Function)]

    def class_(self, name: str) -> ast.ClassDef:
        found = [node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef) and node.name == name]
        return self._one(found, f"class {name}")

    def method(self, name: str, class_name: str | None = None) -> Function:
        """The one method of this name (of `class_name`, if given)."""
        scope = self.class_(class_name) if class_name else self.tree
        return self._one([n for n in self.functions(scope) if n.name == name], name)

    def assignments(self, target: str, scope: ast.AST | None = None) -> list[ast.Assign | ast.AnnAssign]:
        """Assignments to `target` as written (`self._use_prefill`), in source order."""
        return [node for node in self._assignments.get(target, []) if _within(node, scope)]

    @cached_property
    def _assignments(self) -> dict[str, list[ast.Assign | ast.AnnAssign]]:
        found: dict[str, list[ast.Assign | ast.AnnAssign]] = {}
        for node in ast.walk(self.tree):
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign):
                targets = node.targets
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                targets = [node.target]
            for text in {ast.unparse(target) for target in targets}:
                found.setdefault(text, []).append(node)  # type: ignore[arg-type]
        return {text: sorted(nodes, key=lambda n: n.lineno) for text, nodes in found.items()}

    def assigned(self, target: str, scope: ast.AST | None = None) -> ast.expr:
        """The value of the one assignment to `target`."""
        value = self._one(self.assignments(target, scope), f"assignment to {target}").value
        assert value is not None
        return value

    def calls(self, name: str, scope: ast.AST | None = None) -> list[ast.Call]:
        """Calls of a function or method of this last name, in source order."""
        return [call for call in self._calls.get(name, []) if _within(call, scope)]

    @cached_property
    def _calls(self) -> dict[str, list[ast.Call]]:
        found: dict[str, list[ast.Call]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                found.setdefault(called(node), []).append(node)
        return {name: sorted(calls, key=lambda n: (n.lineno, n.col_offset)) for name, calls in found.items()}

    def _one(self, found: list[_T], what: str) -> _T:
        if not found:
            raise NotFound("anchor-absent", f"{self.path}: no {what}")
        if len(found) > 1:
            raise NotFound("ambiguous", f"{self.path}: {what} is there {len(found)} times, once was expected")
        return found[0]


def _within(node: ast.expr | ast.stmt, scope: ast.AST | None) -> bool:
    """Whether a node lies in a scope, by lines and columns (a scope is a statement, a body's owner, or the file)."""
    if scope is None or isinstance(scope, ast.Module):
        return True
    start = (getattr(scope, "lineno", 0), getattr(scope, "col_offset", 0))
    end = (getattr(scope, "end_lineno", 0), getattr(scope, "end_col_offset", 0))
    return start <= (node.lineno, node.col_offset) and (node.end_lineno or 0, node.end_col_offset or 0) <= end


def called(call: ast.Call) -> str:
    """The last name of what is called: `register_task` of `self.kn_graph.register_task(...)`."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def argument(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """The argument given as keyword, or at `position`."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if position is not None and position < len(call.args):
        return call.args[position]
    return None


def key_text(node: ast.expr) -> str | None:
    """The text of a string or f-string, each placeholder as `{expression}`."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(
                f"{{{ast.unparse(part.value)}}}" if isinstance(part, ast.FormattedValue) else str(part.value)
                for part in parts
                if isinstance(part, ast.FormattedValue | ast.Constant)
            )
    return None
