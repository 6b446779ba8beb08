"""Wrong interpreters and checkouts are wrong calls, in one line, before anything is started."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from conformance.errors import UsageError
from conformance.stacks import interpreter


def refused(python: str) -> str:
    with pytest.raises(UsageError) as caught:
        interpreter.resolve(python, "--vllm-python")
    message = str(caught.value)
    assert message.startswith(f"--vllm-python {python}")
    assert "\n" not in message
    return message


def test_the_default_is_the_interpreter_that_runs_us() -> None:
    assert interpreter.resolve(None, "--vllm-python") == sys.executable
    assert interpreter.resolve(sys.executable, "--vllm-python") == str(Path(sys.executable).absolute())


def test_a_path_that_does_not_exist() -> None:
    assert "no such file" in refused("/nowhere/bin/python")
    assert "no such file" in refused("no-such-python-on-the-path")


def test_a_folder_names_the_interpreter_inside(tmp_path: Path) -> None:
    assert "is a folder" in refused(str(tmp_path))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    assert refused(str(tmp_path)).endswith(f"nearest: {tmp_path}/bin/python")


def test_a_text_file_and_a_program_that_is_no_python(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a program")
    assert "not executable" in refused(str(text))
    text.chmod(0o755)
    assert "cannot be run" in refused(str(text))
    assert "not a Python interpreter" in refused("/bin/true")


def test_a_python_that_is_too_old(tmp_path: Path) -> None:
    old = tmp_path / "python2.7"
    old.write_text("#!/bin/sh\necho python 2.7\n")
    old.chmod(0o755)
    assert "is Python 2.7; 3.10 or newer was due" in refused(str(old))


def test_a_checkout_holds_the_package(tmp_path: Path) -> None:
    for source in (str(tmp_path / "nowhere"), str(tmp_path)):
        with pytest.raises(UsageError, match=r"--vllm-source .*vllm/__init__\.py"):
            interpreter.checkout(source, "vllm", "--vllm-source")
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    assert interpreter.checkout(str(tmp_path), "vllm", "--vllm-source") == str(tmp_path)
    assert interpreter.checkout(None, "vllm", "--vllm-source") is None


def test_a_foreign_search_path_holds_nothing_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ours = Path(__file__).parents[2]
    site = next(entry for entry in sys.path if entry.endswith("-packages"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ours), str(tmp_path), site]))
    assert interpreter.search_path(["/a/checkout"]) == f"/a/checkout{os.pathsep}{tmp_path}"
