"""What a stack or a check does becomes a status with one line of reason; nothing of it ends the run."""

from __future__ import annotations

import re
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import torch

from conformance import errors
from conformance.gate.runner import Runner, repeat_command
from conformance.result import Evidence, Status
from conformance.stacks import registry
from tests.gate import fakes
from tests.gate.fakes import FakeStack, claim, install, resolved

EXCEPTIONS = [
    (errors.StackMissing("no vllm: pip install vllm"), "not-run"),
    (errors.NotSupported("no virtual TP"), "not-supported"),
    (errors.Blocked("the stack refuses to build it"), "blocked"),
    (errors.StackRefused("EP is not supported"), "fail"),
    (errors.StackCrashed("signal 11"), "crash"),
    (errors.StackTimeout("300 s"), "timeout"),
    (errors.AdapterError("no attribute"), "error"),
    (errors.UnfitShape("too narrow"), "fail"),
]


def _run(monkeypatch, action, stack: FakeStack | None = None, **settings):
    """(result, runner) of one claim whose check is `action`."""
    monkeypatch.setattr(fakes, "acts", action, raising=False)
    install(monkeypatch, [claim("plan.a", check="acts")], stacks={"fake": stack or FakeStack(), "reference": None})
    recorded: list = []
    runner = Runner(resolved(**settings), recorded.append)
    found = runner.run_claim(claim("plan.a", check="acts"))
    assert recorded == [found]
    assert len(found.reason.splitlines()) <= 1
    msgspec.json.encode(found)
    return found, runner


def _raising(error: BaseException):
    def act(stack, context):
        raise error

    return act


@pytest.mark.parametrize(("error", "status"), EXCEPTIONS)
def test_exceptions_of_a_check(monkeypatch, error, status):
    found, _ = _run(monkeypatch, _raising(error))
    assert (str(found.status), found.reason, found.evidence) == (status, str(error), None)


@pytest.mark.parametrize(("error", "status"), EXCEPTIONS)
@pytest.mark.parametrize("where", ["opening", "telling", "planning"])
def test_exceptions_of_a_stack(monkeypatch, error, status, where):
    stack = FakeStack(telling=error if where == "telling" else None)
    stack.planning = error if where == "planning" else None

    def opener(options):
        raise error

    monkeypatch.setattr(fakes, "acts", fakes.passes, raising=False)
    install(monkeypatch, [claim("plan.a"), claim("plan.b")], stacks={"fake": opener if where == "opening" else stack})
    runner = Runner(resolved(), lambda result: None)
    for name in ("plan.a", "plan.b"):
        found = runner.run_claim(claim(name))
        if where == "telling" and status == "crash":  # before any claim: not judged for it
            assert (str(found.status), found.reason) == ("error", f"before any claim: {error}")
        else:
            assert (str(found.status), found.reason) == (status, str(error))
    runner.close()
    assert stack.closed == (where != "opening")


@pytest.mark.parametrize(
    ("kind", "words"), [(RuntimeError, "CUDA\n driver"), (OSError, "I/O error"), (MemoryError, ""), (KeyError, "w13")]
)
@pytest.mark.parametrize(("where", "file"), [("check", "test_runner"), ("telling", "fakes"), ("planning", "fakes")])
def test_anything_else_is_our_own_error_with_its_place(monkeypatch, kind, words, where, file):
    error = kind(words)
    stack = FakeStack(telling=error if where == "telling" else None)
    stack.planning = error if where == "planning" else None
    found, _ = _run(monkeypatch, _raising(error) if where == "check" else fakes.passes, stack)
    assert found.status is Status.ERROR
    said = " ".join(str(error).split())
    assert re.fullmatch(rf"{kind.__name__}: {re.escape(said)} \({file}\.py:\d+\)", found.reason)


def test_assertions_are_errors_of_the_harness(monkeypatch):
    def act(stack, context):
        assert 1 + 1 == 3

    found, _ = _run(monkeypatch, act)
    assert found.status is Status.ERROR and "AssertionError" in found.reason


@pytest.mark.parametrize("error", [SystemExit(0), SystemExit("bye"), pytest.skip.Exception("later"), GeneratorExit()])
def test_nothing_that_foreign_code_throws_ends_the_gate(monkeypatch, error):
    """`sys.exit(0)` in a plug-in must not become the gate's own exit code 0."""
    found, _ = _run(monkeypatch, _raising(error))
    assert found.status is Status.ERROR and type(error).__name__ in found.reason


@pytest.mark.parametrize("error", [errors.UsageError("no such interpreter"), KeyboardInterrupt()])
def test_a_wrong_call_and_ctrl_c_do(monkeypatch, error):
    with pytest.raises(type(error)):
        _run(monkeypatch, _raising(error))


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, "returned NoneType, no Evidence"),
        (True, "returned bool, no Evidence"),
        (Evidence(ok=True, summary="s", measured=torch.zeros(2)), "Tensor"),
        (Evidence(ok=np.bool_(True), summary="s"), "bool"),
        (Evidence(ok=True, summary="lone \ud800"), "surrogates"),
    ],
)
def test_what_is_no_evidence(monkeypatch, returned, words):
    found, _ = _run(monkeypatch, lambda stack, context: returned)
    assert (found.status, found.evidence) == (Status.ERROR, None)
    assert words in found.reason


def test_escape_codes_and_surrogates_in_messages_are_spelt_out(monkeypatch):
    found, _ = _run(monkeypatch, _raising(errors.StackRefused("\x1b[31mno\x1b[0m\r\nway \udcff\x00")))
    assert found.reason == "\\x1b[31mno\\x1b[0m way \\udcff\\x00"


def test_pass_and_fail(monkeypatch):
    found, _ = _run(monkeypatch, fakes.passes)
    assert (found.status, found.reason, found.repeat, found.evidence.stack) == (Status.PASS, "", "", "fake")
    found, _ = _run(monkeypatch, fakes.fails)
    assert (found.status, found.reason, found.evidence.stack) == (Status.FAIL, "wrong", "fake")
    assert found.repeat.startswith("conformance gate --claim plan.a ")


@pytest.mark.parametrize("ok", [None, 0, ""])
def test_only_true_passes(monkeypatch, ok):
    found, _ = _run(monkeypatch, lambda stack, context: Evidence(ok=ok, summary="s"))
    assert found.status is Status.FAIL


def test_without_a_check_it_was_not_run(monkeypatch):
    install(monkeypatch, [claim("plan.a", check="")])
    found = Runner(resolved(), lambda result: None).run_claim(claim("plan.a", check=""))
    assert found.status is Status.NOT_RUN and "no check" in found.reason


def test_not_applicable_comes_before_the_stack(monkeypatch):
    """Decided from the geometry alone: the stack is not even opened."""

    def opener(options):
        raise AssertionError("opened")

    needy = claim("plan.a", needs_geometry=["shared_experts"])
    install(monkeypatch, [needy], stacks={"fake": opener})
    run = resolved(geometry="gpt-oss-120b")
    assert Runner(run, lambda result: None).run_claim(needy).status is Status.NOT_APPLICABLE


def test_one_stack_is_opened_once_and_closed_once(monkeypatch):
    stacks = {"fake": FakeStack(), "other": FakeStack("other")}
    claims = [claim("plan.a"), claim("plan.b"), claim("loader.c"), claim("moe.d")]
    opened: list[str] = []

    def opener(name):
        return lambda options: opened.append(name) or stacks[name]

    install(monkeypatch, claims, stacks={name: opener(name) for name in stacks})
    saw: list[str] = []
    runner = Runner(resolved(stack="fake,loader=other"), lambda r: None, saw_stack=lambda info: saw.append(info.name))
    assert [str(runner.run_claim(c).status) for c in claims] == ["pass"] * 4
    assert opened == saw == ["fake", "other"]
    stacks["fake"].closing = RuntimeError("already gone")
    runner.close()
    runner.close()
    assert [s.closed for s in stacks.values()] == [1, 1]


def test_a_plug_in_that_cannot_be_imported_is_missing(monkeypatch):
    def load():
        raise ImportError("No module named 'flashinfer'")

    install(monkeypatch, [claim("plan.a")])
    monkeypatch.setattr(registry, "_known", lambda: {"fake": SimpleNamespace(load=load)})
    found = Runner(resolved(), lambda result: None).run_claim(claim("plan.a"))
    assert (str(found.status), found.reason) == ("not-run", "stack fake: ImportError: No module named 'flashinfer'")


def test_a_kernel_library_has_neither_planner_nor_loader(monkeypatch):
    """What it lacks is said where it is asked for, and nowhere else."""
    library = FakeStack()
    kernels = SimpleNamespace(name="fake", info=library.info, close=library.close)
    found, _ = _run(monkeypatch, lambda stack, context: context.plan(), kernels)
    assert (str(found.status), found.reason) == ("not-supported", "the stack fake has no planner")
    found, _ = _run(monkeypatch, fakes.passes, kernels)
    assert found.status is Status.PASS


def test_known_results_are_taken_as_they_are(monkeypatch):
    known = fakes.result(Status.FAIL, name="plan.a", reason="then")
    install(monkeypatch, [claim("plan.a")])
    recorded: list = []
    runner = Runner(resolved(), recorded.append, {"plan.a": known})
    assert runner.run_claim(claim("plan.a")) == known
    assert recorded == []


@pytest.mark.parametrize(
    ("settings", "due"),
    [
        ({}, "--profile cpu --stack fake --geometry deepseek-v4-tiny --tp 3"),
        (
            {"tp": "5", "backend": "marlin"},
            "--profile cpu --stack fake --geometry deepseek-v4-tiny --tp 5 --backend marlin",
        ),
        ({"stack": None, "emulate": "sm120"}, "--emulate sm120 --geometry deepseek-v4-tiny --tp 3"),
        (
            {"policy": "audit", "force_shard": True},
            "--profile cpu --stack fake --geometry deepseek-v4-tiny --tp 3 --policy audit --force-shard",
        ),
        ({"policy": "release"}, "--profile cpu --stack fake --geometry deepseek-v4-tiny --tp 3"),
        (
            {"repair": "w2-units", "vllm_source": "/a b"},
            "--profile cpu --stack fake --vllm-source '/a b' --geometry deepseek-v4-tiny --tp 3 --repair w2-units",
        ),
    ],
)
def test_the_line_that_repeats_a_claim(monkeypatch, settings, due):
    install(monkeypatch, [claim("plan.a"), claim("loader.a"), claim("moe.tp3.reference")])
    assert repeat_command(resolved(**settings), "loader.a") == f"conformance gate --claim loader.a {due}"


def test_a_claim_may_be_about_another_layers_stack(monkeypatch):
    """Whoever loads converts: its stack is judged where its layer is in scope, the claim's own otherwise."""
    asked = []

    def act(stack, context):
        asked.append(stack.name)
        return Evidence(ok=True, summary="right")

    monkeypatch.setattr(fakes, "acts", act, raising=False)
    one = msgspec.structs.replace(claim("moe.a", check="acts"), of="loader")
    stacks = {"fake": FakeStack(), "other": FakeStack("other"), "reference": None}
    install(monkeypatch, [one, claim("loader.a"), claim("plan.a")], stacks=stacks)
    for layers in ("loader,moe", "moe"):
        run = resolved(stack="fake,loader=other", layers=layers)
        found = Runner(run, lambda result: None).run_claim(one)
        assert found.status is Status.PASS
    assert asked == ["other", "fake"]
