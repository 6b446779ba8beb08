"""`--then` launches after a full GO of a real stack, and after nothing else."""

from __future__ import annotations

import sys

import pytest

from tests.gate.fakes import FakeStack, claim, install

CLAIMS = [claim("plan.a"), claim("loader.b"), claim("moe.tp3.reference")]


@pytest.fixture(autouse=True)
def _catalogue(monkeypatch):
    install(monkeypatch, CLAIMS, stacks={name: FakeStack(name) for name in ("fake", "reference", "vllm")})


def _gate(conformance, tmp_path, *words: str, command: str = "touch launched"):
    base = ["gate", "--profile", "cpu", "--geometry", "deepseek-v4-tiny", "--run-dir", "run"]
    done = conformance(*base, "--then", command, *words)
    return done, (tmp_path / "launched").exists()


@pytest.mark.parametrize("words", ["--stack fake", "--stack fake --policy audit", "--stack fake --policy release"])
def test_launched(conformance, tmp_path, words):
    done, launched = _gate(conformance, tmp_path, *words.split())
    assert (done.code, launched) == (0, True)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--stack reference", "reference stack"),
        ("--stack fake,loader=reference", "loader on the reference stack"),
        ("--stack fake --layers plan", "scope: plan"),
        ("--stack fake --claim plan.a", "scope: 1 chosen claim"),
        ("--stack fake --repair w2-units", "repaired: w2-units"),
        ("--stack fake --force-shard", "forced: --force-shard"),
    ],
)
def test_a_go_that_is_no_full_one_is_not_launched(conformance, tmp_path, words, why):
    done, launched = _gate(conformance, tmp_path, *words.split())
    assert (done.code, launched) == (3, False)
    assert done.out.splitlines()[-1].startswith("not launched: GO (") and why in done.out.splitlines()[-1]


@pytest.mark.parametrize(("check", "code"), [("fails", 1), ("", 3)])
def test_no_go_and_incomplete_are_not_launched(conformance, monkeypatch, tmp_path, check, code):
    install(monkeypatch, [*CLAIMS, claim("loader.c", check=check)], stacks={"fake": FakeStack()})
    done, launched = _gate(conformance, tmp_path, "--stack", "fake")
    assert (done.code, launched) == (code, False)


def test_the_exit_code_is_then_the_commands(conformance, tmp_path):
    command = f"{sys.executable} -c 'import sys; sys.exit(7)'"
    assert _gate(conformance, tmp_path, "--stack", "fake", command=command)[0].code == 7
