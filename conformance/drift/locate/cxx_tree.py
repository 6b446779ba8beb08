"""C++ that parses, by tree-sitter: functions, if-chains, and the text that a code generator emits.

tree-sitter is imported here and nowhere else: only the drift command needs it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import tree_sitter_cpp
from tree_sitter import Language, Node, Parser

from conformance.drift.finding import Evidence, NotFound
from conformance.drift.locate.checkout import Checkout, SourceFile

#: A file in which more than this share of bytes does not parse is called unparsed.
MAX_ERROR_SHARE = 0.02


class Emitted(NamedTuple):
    """One call `code.e(text, arguments...)`: adjacent literals joined, `$` stands for the next argument."""

    text: str
    arguments: tuple[str, ...]
    line: int

    @property
    def filled(self) -> str:
        """The text with each `$` replaced by the source text of its argument, in parentheses."""
        remaining = iter(self.arguments)
        return re.sub(r"\$", lambda _: f"({next(remaining, '$')})", self.text)


class CxxTree:
    def __init__(self, file: SourceFile) -> None:
        self.file = file
        self.path = file.path
        self.data = file.text.encode()
        self.root = Parser(Language(tree_sitter_cpp.language())).parse(self.data).root_node
        bad = sum(node.end_byte - node.start_byte for node in walk(self.root) if node.type == "ERROR")
        if bad > MAX_ERROR_SHARE * max(1, len(self.data)):
            raise NotFound("unparsed", f"{file.path}: {bad} of {len(self.data)} bytes do not parse as C++")

    @classmethod
    def of(cls, checkout: Checkout, path: str) -> CxxTree:
        return cls(checkout.file(path))

    def words(self, node: Node | None) -> str:
        return "" if node is None else self.data[node.start_byte : node.end_byte].decode(errors="replace")

    def line(self, node: Node) -> int:
        return node.start_point[0] + 1

    def evidence(self, node: Node, qualname: str = "") -> Evidence:
        return self.file.evidence(self.line(node), qualname)

    def functions(self) -> dict[str, list[Node]]:
        """Function definitions by their last name."""
        found: dict[str, list[Node]] = {}
        for node in walk(self.root):
            if node.type == "function_definition" and (declarator := function_declarator(node)) is not None:
                name = self.words(declarator.child_by_field_name("declarator")).split("::")[-1].strip()
                found.setdefault(name, []).append(node)
        return found

    def function(self, name: str) -> Node:
        found = self.functions().get(name, [])
        if not found:
            raise NotFound("anchor-absent", f"{self.path}: no function {name}")
        if len(found) > 1:
            raise NotFound("ambiguous", f"{self.path}: {name} is defined {len(found)} times, once was expected")
        return found[0]

    def parameters(self, function: Node) -> list[str]:
        """Names of a function's parameters."""
        declarator = function_declarator(function)
        listed = declarator.child_by_field_name("parameters") if declarator is not None else None
        names = []
        for child in listed.named_children if listed is not None else ():
            words = re.findall(r"\w+", self.words(child).split("=")[0])
            names.append(words[-1] if words else "")
        return names

    def condition(self, statement: Node) -> str:
        return " ".join(self.words(statement.child_by_field_name("condition")).strip().split())

    def live(self, node: Node, known: Mapping[str, bool]) -> Iterator[Node]:
        """Every node below, less the branches of `if` and `?:` that the known booleans rule out."""
        yield node
        if node.type in {"if_statement", "conditional_expression"}:
            holds = truth(self.condition(node), known)
            skip = None if holds is None else "alternative" if holds else "consequence"
            dropped = node.child_by_field_name(skip) if skip else None
            for child in node.children:
                if dropped is None or child.id != dropped.id:
                    yield from self.live(child, known)
        else:
            for child in node.children:
                yield from self.live(child, known)

    def emitted(self, function: Node, known: Mapping[str, bool] | None = None) -> list[Emitted]:
        """What the function emits through `code.e(...)` or `c.e(...)`, in order."""
        found = []
        for node in self.live(function, known or {}):
            if node.type != "call_expression":
                continue
            if not re.fullmatch(r"\w+\s*\.\s*e", self.words(node.child_by_field_name("function"))):
                continue
            listed = node.child_by_field_name("arguments")
            arguments = [c for c in listed.named_children if c.type != "comment"] if listed is not None else []
            if arguments:
                text = self.literal(arguments[0], known or {})
                filling = tuple(self._argument(a, known or {}) for a in arguments[1:])
                found.append(Emitted(text, filling, self.line(node)))
        return found

    def _argument(self, node: Node, known: Mapping[str, bool]) -> str:
        """An argument's text; of `condition ? a : b` the branch that lives, of a string its contents."""
        while node.type == "parenthesized_expression" and node.named_children:
            node = node.named_children[0]
        if node.type == "conditional_expression" and (holds := truth(self.condition(node), known)) is not None:
            branch = node.child_by_field_name("consequence" if holds else "alternative")
            return self._argument(branch, known) if branch is not None else ""
        if node.type in {"string_literal", "concatenated_string"}:
            return self.literal(node, known)
        return self.words(node)

    def literal(self, node: Node, known: Mapping[str, bool]) -> str:
        """The text of all live string literals below a node, joined."""
        parts = [self.words(n) for n in self.live(node, known) if n.type == "string_literal"]
        return "".join(part[part.find('"') + 1 : -1].replace('\\"', '"').replace("\\n", "\n") for part in parts)


def walk(node: Node) -> Iterator[Node]:
    """A node and everything below it, in source order."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))


def function_declarator(function: Node) -> Node | None:
    """The `name(parameters)` of a definition, below pointers and references."""
    node = function.child_by_field_name("declarator")
    while node is not None and node.type != "function_declarator":
        node = node.child_by_field_name("declarator") or next(iter(node.named_children), None)
    return node


def truth(condition: str, known: Mapping[str, bool]) -> bool | None:
    """Whether a condition made of names, `!`, `&&` and `||` holds; None where a name is not known."""
    text = condition.strip()
    while text.startswith("(") and text.endswith(")") and _closes_last(text):
        text = text[1:-1].strip()
    for operator, decisive in (("||", True), ("&&", False)):
        parts = _split(text, operator)
        if len(parts) > 1:
            values = [truth(part, known) for part in parts]
            if decisive in values:
                return decisive
            return None if None in values else not decisive
    if text.startswith("!"):
        inner = truth(text[1:], known)
        return None if inner is None else not inner
    return known.get(text)


def _closes_last(text: str) -> bool:
    depth = 0
    for at, char in enumerate(text):
        depth += {"(": 1, ")": -1}.get(char, 0)
        if depth == 0:
            return at == len(text) - 1
    return False


def _split(text: str, operator: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += {"(": 1, ")": -1}.get(char, 0)
        if depth == 0 and text.startswith(operator, at):
            parts.append(text[start:at])
            start = at + len(operator)
    return [*parts, text[start:]]
