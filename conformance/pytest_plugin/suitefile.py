"""A suite file, read instead of imported: checks draw in torch and more, and collection must not.

What is wrong inside a check's module thus shows when the check runs, and costs the claims of that file alone.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from conformance import catalogue, suite
from conformance.catalogue import Claim
from conformance.errors import UsageError
from conformance.pytest_plugin.items import ClaimItem
from conformance.pytest_plugin.places import file_of

_DECORATOR = suite.claim.__name__


def open_suite(path: Path, parent: pytest.Collector) -> SuiteFile | None:
    """None for a file that holds no checks (or does not parse): pytest deals with it as with any other."""
    source = path.read_bytes()
    if suite.__name__.encode() not in source:
        return None
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return None
    checks = [(node, call) for node in body if isinstance(node, ast.FunctionDef) and (call := _claim_call(node))]
    return SuiteFile.from_parent(parent, path=path, checks=checks, others=_tests(body)) if checks else None


class SuiteFile(pytest.File):
    """`checks` are functions with their `@claim(...)`; `others`, names of tests that no claim stands for."""

    def __init__(self, *, checks: list[tuple[ast.FunctionDef, ast.Call]], others: list[str], **kwargs: Any):
        super().__init__(**kwargs)
        self._checks = checks
        self._others = others

    def collect(self) -> Iterable[ClaimItem]:
        """Raises CollectError where file and claims' data disagree: the gate would run something else."""
        if self._others:
            raise self.CollectError(f"{self.nodeid}: {self._others[0]} is no check; other tests belong into tests/")
        for function, call in self._checks:
            claim = self._claim(function, call)
            yield ClaimItem.from_parent(self, name=function.name, claim=claim, line=function.lineno - 1)

    def _claim(self, function: ast.FunctionDef, call: ast.Call) -> Claim:
        here = f"{self.nodeid}::{function.name}"
        if not (len(call.args) == 1 and isinstance(call.args[0], ast.Constant)):
            raise self.CollectError(f"{here}: @{_DECORATOR} takes one id, written out")
        try:
            claim = catalogue.get(str(call.args[0].value))
        except UsageError as error:
            raise self.CollectError(f"{here}: {error}") from None
        own = claim.check and file_of(claim) == Path(os.path.realpath(self.path))
        if not own or claim.check.partition(":")[2] != function.name:
            raise self.CollectError(f"{here}: claim {claim.id} is checked by {claim.check or 'nothing'}, not here")
        return claim


def _claim_call(function: ast.FunctionDef) -> ast.Call | None:
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call):
            name = decorator.func
            if _DECORATOR in (getattr(name, "id", None), getattr(name, "attr", None)):
                return decorator
    return None


def _tests(body: list[ast.stmt]) -> list[str]:
    named = [node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    return [node.name for node in named if node.name.lower().startswith("test")]
