"""Edits that change no meaning change no verdict: comments, reformatting, order, other line numbers."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.drift.context import BUILDER, CONVERT, DEMO, MULTIGPU, WRAPPERS
from conformance.drift.finding import Finding
from conformance.drift.locate.tasks import GRAPH, RUNTIME
from tests.drift.running import edit, findings


def _commented(root: Path) -> None:
    """50 lines of comment on top, with words in them that rules look for."""
    for path in root.rglob("*"):
        words = 'if (Q_LEN > 3) { return; } code.e("x", 1) W_UV = kv[:, :v_dim] "unclosed'
        mark = "#" if path.suffix == ".py" else "//"
        if path.is_file() and path.suffix != ".md":
            path.write_text(f"{mark} {words}\n" * 50 + path.read_text())


def _unparsed(root: Path) -> None:
    """Python as ast writes it: no comments, one line a statement; other line numbers everywhere."""
    for path in (BUILDER, CONVERT, DEMO, MULTIGPU, WRAPPERS):
        file = root / path
        file.write_text(ast.unparse(ast.parse(file.read_text())) + "\n")


def _reformatted(root: Path) -> None:
    """C++ with tabs, braces on lines of their own, block comments between tokens, and broken argument lists."""
    for path in [*root.rglob("*.cc"), *root.rglob("*.cuh"), *root.rglob("*.h")]:
        lines = []
        for line in path.read_text().splitlines():
            if not line.lstrip().startswith(("#", "//")) and '"' not in line:
                line = line.replace("  ", "\t").replace(") {", ") /* { */\n{").replace(", ", " /* , */,\n\t")
            lines.append(line)
        path.write_text("\n\n".join(lines) + "\n")


def _reordered(root: Path) -> None:
    """Methods, dispatch rows and printed names in another order."""
    file = root / WRAPPERS
    tree = ast.parse(file.read_text())
    kernel = next(node for node in tree.body if isinstance(node, ast.ClassDef))
    kernel.body.sort(key=lambda node: getattr(node, "name", ""), reverse=True)
    file.write_text(ast.unparse(tree) + "\n")
    runtime = root / RUNTIME
    rows = re.findall(r"  task_type_to_name\[.*\n", runtime.read_text())
    edit(root, RUNTIME, "".join(rows), "".join(reversed(rows)))
    arms = re.findall(r'if \(name == "\w+"\) \{\n.*?\n  \}', (root / GRAPH).read_text(), re.DOTALL)
    assert len(arms) > 20
    edit(root, GRAPH, " else ".join(arms), " else ".join(reversed(arms)))


def _respelt(root: Path) -> None:
    """The same formulas in other words."""
    edit(root, DEMO, "W_UV = by_head[:, nope_rows:, :]", "_, W_UV = by_head.split([qk_nope, v_dim], dim=1)")
    edit(root, BUILDER, "self._use_prefill = mbt > 8", "self._use_prefill = not mbt <= 8")
    for path in root.rglob("mla_mtp_decode*.cuh"):
        path.write_text(path.read_text().replace("Q_LEN > 8", "Q_LEN >= 9"))
    edit(root, WRAPPERS, '"-rdc=false" if (not use_nvshmem or _rdc_false) else "-rdc=true"',
         '"-rdc=true" if use_nvshmem and not _rdc_false else "-rdc=false"')  # fmt: skip


@pytest.mark.parametrize(
    "change", [_commented, _unparsed, _reformatted, _reordered, _respelt], ids=lambda f: f.__name__
)
def test_silent(change: Callable[[Path], None], mpk: Path, vllm: Path, clean: dict[str, Finding]) -> None:
    change(mpk)
    found = findings(mpk, vllm)
    told = {rule: (f.status, f.reason, f.differences) for rule, f in found.items()}
    assert told == {rule: (f.status, f.reason, f.differences) for rule, f in clean.items()}


def test_line_numbers_follow(mpk: Path, vllm: Path, clean: dict[str, Finding]) -> None:
    _commented(mpk)
    before, after = clean["W05"].mpk[0], findings(mpk, vllm, "", "W05")["W05"].mpk[0]
    assert (after.line, after.snippet) == (before.line + 50, before.snippet)
