"""Evaluates arithmetic found in audited sources, without running them: numbers, names, and a few pure functions."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from conformance.drift.finding import NotFound

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "float": float,
    "int": int,
    "bool": bool,
    "logf": math.log,
    "log": math.log,
    "math.log": math.log,
    "sqrtf": math.sqrt,
    "sqrt": math.sqrt,
    "math.sqrt": math.sqrt,
}
#: Shifts and powers are the only ways to a huge number out of small text.
_LARGEST = 1 << 40


def evaluate(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value of an expression. `names` may hold dotted names. Raises NotFound(not-evaluated) for anything else."""
    value = _evaluate(node, names)
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise NotFound("not-evaluated", f"{ast.unparse(node)!r} is too large a number")
    return value


def _evaluate(node: ast.expr, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name() | ast.Attribute() | ast.Subscript() if (text := ast.unparse(node)) in names:
            return names[text]
        case ast.BinOp(op=ast.Pow()):
            base, power = evaluate(node.left, names), evaluate(node.right, names)
            if abs(power) <= 4:
                return base**power
        case ast.BinOp() if type(node.op) in _BINARY:
            left, right = evaluate(node.left, names), evaluate(node.right, names)
            if isinstance(node.op, ast.LShift) and not 0 <= right < 40:
                raise NotFound("not-evaluated", f"shift by {right} in {ast.unparse(node)!r}")
            try:
                return _BINARY[type(node.op)](left, right)
            except (ZeroDivisionError, TypeError) as error:
                raise NotFound("not-evaluated", f"{ast.unparse(node)!r}: {error}") from None
        case ast.UnaryOp(op=ast.USub()):
            return -evaluate(node.operand, names)
        case ast.UnaryOp(op=ast.Not()):
            return not evaluate(node.operand, names)
        case ast.BoolOp():
            values = [evaluate(value, names) for value in node.values]
            return all(values) if isinstance(node.op, ast.And) else any(values)
        case ast.IfExp():
            return evaluate(node.body if evaluate(node.test, names) else node.orelse, names)
        case ast.Tuple() | ast.List() | ast.Set():
            return [evaluate(part, names) for part in node.elts]
        case ast.Compare():
            left = evaluate(node.left, names)
            for op, comparator in zip(node.ops, node.comparators, strict=True):
                right = evaluate(comparator, names)
                if type(op) not in _COMPARE or not _COMPARE[type(op)](left, right):
                    return False
                left = right
            return True
        case ast.Call() if (function := _FUNCTIONS.get(ast.unparse(node.func))) and not node.keywords:
            return function(*(evaluate(argument, names) for argument in node.args))
    raise NotFound("not-evaluated", f"{ast.unparse(node)!r} cannot be evaluated from text")


_SUFFIX = re.compile(r"\b((?:0[xX][0-9a-fA-F]+)|(?:\d+\.?\d*(?:[eE][+-]?\d+)?))[fFuUlL]+\b")
_SIZEOF = {"bf16": 2, "__nv_bfloat16": 2, "nv_bfloat16": 2, "half": 2, "float": 4, "int": 4, "uint64_t": 8}


def evaluate_cxx(text: str, names: Mapping[str, Any]) -> Any:
    """The value of a C++ arithmetic expression; `/` divides integers as C++ does. Raises NotFound(not-evaluated)."""
    text = _SUFFIX.sub(r"\1", " ".join(text.split()))
    text = re.sub(r"\bsizeof\s*\(\s*([\w:]+)\s*\)", lambda m: str(_SIZEOF.get(m[1], m[0])), text)
    text = re.sub(r"\(\s*(?:int|float|size_t|unsigned|uint32_t|bool)\s*\)", "", text)
    text = re.sub(r"\bstatic_cast<[^<>]*>", "", text).replace("std::", "")
    text = text.replace("&&", " and ").replace("||", " or ").replace("true", "True").replace("false", "False")
    text = re.sub(r"!(?!=)", " not ", text)
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise NotFound("not-evaluated", f"C++ expression {text[:80]!r} cannot be evaluated") from None
    return evaluate(_IntegerDivision(names).visit(tree), names)


class _IntegerDivision(ast.NodeTransformer):
    """a / b becomes a // b where both are integers (positive sizes, where C++ and Python agree)."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self.names = names

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Div) and all(
            isinstance(evaluate(part, self.names), int) for part in (node.left, node.right)
        ):
            return ast.copy_location(ast.BinOp(node.left, ast.FloorDiv(), node.right), node)
        return node
