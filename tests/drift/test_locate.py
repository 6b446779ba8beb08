"""The parts that find code: arithmetic without execution, the C++ scanner, Q_LEN gates, emitted text, wrappers."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.drift.finding import NotFound
from conformance.drift.locate import arithmetic, gates
from conformance.drift.locate.checkout import Checkout, SourceFile
from conformance.drift.locate.cxx import CxxSource, resolve_conditions, split_arguments, without_comments
from conformance.drift.locate.cxx_tree import CxxTree, truth
from conformance.drift.locate.python import PythonSource, key_text
from conformance.drift.locate.wrappers import registrations


def _cxx(text: str) -> CxxSource:
    return CxxSource(SourceFile("a.cuh", text.encode()))


def _python(text: str) -> PythonSource:
    return PythonSource(SourceFile("a.py", text.encode()))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5 * 2 * 16384", 163840),
        ("64 * 512 * sizeof(bf16) + 2 * 64 * sizeof(float)", 66048),
        ("207 * 1024 - 6 * 1024", 205824),
        ("7 / 2", 3),
        ("7.0f / 2", 3.5),
        ("(a + 127) / 128", 2),
        ("a > 3 && !(a == 4)", True),
        ("1.0f / sqrtf(192.0f)", 192**-0.5),
        ("static_cast<int>(a) * 0x10u", 2080),
    ],
)
def test_cxx_arithmetic(text: str, value: object) -> None:
    assert arithmetic.evaluate_cxx(text, {"a": 130}) == pytest.approx(value)


@pytest.mark.parametrize(
    "text",
    ["open('x')", "__import__('os')", "(1).__class__", "[x for x in (1,)]", "lambda: 1", "1 << 99", "9**9**9", "1 / 0"],
)
def test_python_arithmetic_runs_nothing(text: str) -> None:
    with pytest.raises(NotFound):
        arithmetic.evaluate(ast.parse(text, mode="eval").body, {})


@given(st.text(alphabet="ab{}()\"'/*\\\n #", max_size=60))
def test_blanking_keeps_every_offset(text: str) -> None:
    blank = without_comments(text)
    assert len(blank) == len(text)
    assert [i for i, c in enumerate(blank) if c == "\n"] == [i for i, c in enumerate(text) if c == "\n"]


def test_comments_and_strings() -> None:
    source = _cxx('// f() {\nvoid f(int a) { g("}"); /* } */ h(\'{\'); }\nchar const *s = "void f() {";\n')
    body = source.function("f")
    assert body.parameters == "int a"
    assert body.body.count("h(") == 1
    assert source.evidence(body.start).line == 2


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("#ifdef A\nx\n#else\ny\n#endif\n", "x"),
        ("#ifndef A\nx\n#elif B >= 2\ny\n#else\nz\n#endif\n", "y"),
        ("#if defined(NO) || (defined(A) && B > 1)\nx\n#endif\n", "x"),
        ("#if __has_include(<q>)\nx\n#else\ny\n#endif\n", "x y"),
        ("#if 0\n#if 1\nx\n#endif\n#else\ny\n#endif\n", "y"),
    ],
)
def test_conditions(text: str, kept: str) -> None:
    left = resolve_conditions(text, {"A": 1, "B": 2})
    assert left.split() == kept.split()
    assert len(left) == len(text)


def test_arguments() -> None:
    assert split_arguments("a, f(b, c), T<d, e>, {g, h}, i->j") == ["a", "f(b, c)", "T<d, e>", "{g, h}", "i->j"]


@pytest.mark.parametrize(
    ("body", "served"),
    [
        ("if (Q_LEN > 8) { return; }", "1-8"),
        ("if (q_len_real <= 8) return;", "9-1024"),
        ("if (x != 0 || Q_LEN < LOW || Q_LEN >= 12) { log(); return; }", "4-11"),
        ("if (Q_LEN > 1) { work(); }", "1-1024"),
        ("if (q_start >= Q_LEN) { return; }", "1-1024"),
        ("if (Q_LEN < 4) { if (Q_LEN == 2) { return; } }", "1, 3-1024"),
    ],
)
def test_gates(body: str, served: str) -> None:
    source = _cxx(f"constexpr int LOW = 4;\n__device__ void k(int Q_LEN) {{ {body} }}\n")
    assert gates.spans(gates.domain(source, "k", 1, lambda name: source).q_lens) == served


def test_gates_through_a_dispatcher() -> None:
    source = _cxx("""
__device__ void mla_long_task_impl(int Q_LEN) { if (Q_LEN < 16) { return; } }
__device__ void mla_short_main(int Q_LEN) { if (Q_LEN > 8) { return; } }
template <int TP_SIZE> __device__ void mla_both(int q_len) {
  if (q_len >= 9) { mla_long_task_impl(q_len); return; }
  if constexpr (TP_SIZE == 2) { mla_short_main(q_len); }
}
""")
    assert gates.spans(gates.domain(source, "mla_both", 2, lambda name: source).q_lens) == "1-8, 16-1024"
    assert gates.spans(gates.domain(source, "mla_both", 4, lambda name: source).q_lens) == "16-1024"


def test_emitted_text_follows_known_booleans() -> None:
    tree = CxxTree(SourceFile("a.cc", b"""
int f(bool with_residual) {
  code.e("a($" "b,", num * 2);  // code.e("comment");
  if (with_residual && other) { code.e("r,"); } else { code.e("n,"); }
  code.e("$", with_residual ? "yes" : "no");
}
"""))  # fmt: skip
    lines = tree.emitted(tree.function("f"), {"with_residual": False})
    assert [line.filled for line in lines] == ["a((num * 2)b,", "n,", "(no)"]
    assert [line.text for line in tree.emitted(tree.function("f"))] == ["a($b,", "r,", "n,", "$"]


@pytest.mark.parametrize(
    ("condition", "holds"),
    [("a", True), ("!a", False), ("(a && b)", None), ("(!a && b)", False), ("a || b", True), ("(a) && (a || b)", True)],
)
def test_truth(condition: str, holds: bool | None) -> None:
    assert truth(condition, {"a": True}) is holds


def test_names_through_helpers_and_choices() -> None:
    source = _python("""
class K:
    def _helper(self, x, task_name):
        g = TBGraph()
        g.new_input(x)
        self.kn.register_task(g, task_name)
    def one_layer(self, x):
        self._helper(x, task_name="one")
    def two_layer(self, x, fast, r=None):
        name = "fast" if fast else "slow"
        g = TBGraph()
        g.new_input(x)
        if r is not None:
            g.new_input(r)
        self.kn.register_task(g, name, [])
""")
    told = [(r.task, r.wrapper, r.inputs, r.optional) for r in registrations(source)]
    assert told == [("fast", "two_layer", 2, 1), ("one", "one_layer", 1, 0), ("slow", "two_layer", 2, 1)]


def test_resolving_names() -> None:
    source = _python('def f(mp):\n    a, b = mp["x"], mp["y"]\n    c = a + b\n    return c\n    c = 0\n')
    value = next(n for n in ast.walk(source.tree) if isinstance(n, ast.Return)).value
    assert value is not None
    assert source.resolve(value, {"mp['x']": 2, "mp['y']": 3}) == 5


def test_keys() -> None:
    node = ast.parse('f"{attn}q.{n + 1}.weight"', mode="eval").body
    assert key_text(node) == "{attn}q.{n + 1}.weight"


def test_checkout_stays_within(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (root / "a/f.py").write_text("x")
    (tmp_path / "g.py").write_text("y")
    (root / "a/g.py").symlink_to(tmp_path / "g.py")
    (root / "loop").symlink_to(root)
    checkout = Checkout(root)
    assert checkout.under("a", ".py") == ["a/f.py"]
    assert not checkout.has("../g.py")
    with pytest.raises(NotFound, match="leads out of the checkout"):
        checkout.file("../g.py")
    assert checkout.fingerprint() == Checkout(root).fingerprint()
    before = checkout.fingerprint()
    (root / "a/f.py").chmod(0o600)
    assert checkout.fingerprint() != before
