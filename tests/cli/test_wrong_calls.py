"""Every wrong call is one line on stderr, exit code 2, and nothing else: nothing ran, nothing was written."""

from __future__ import annotations

import errno

import pytest

TP = "a whole number from 1 to 1024 was due"
NAMES = [
    ("gate --profile smm120", "unknown profile 'smm120'; nearest: sm120 "),
    ("gate --profile sm12", "unknown profile 'sm12'; nearest: sm120 "),
    ("gate --profile SM120", "unknown profile 'SM120'; nearest: sm120 "),
    ("gate --emulate sm1000", "unknown profile 'sm1000'; nearest: sm100 "),
    ("gate --emulate cpu", "--emulate takes a GPU profile"),
    ("gate --emulate sm120 --profile sm100", "--emulate sm120 implies --profile cpu"),
    ("gate --emulate sm120 --profile sm120", "--emulate sm120 implies --profile cpu"),
    ("gate --emulate sm120 --stack vllm", "--emulate sm120 runs on the reference stack, not on vllm"),
    ("gate --stack refrence", "unknown stack 'refrence'; nearest: reference "),
    ("gate --stack plan=reference,loader=vlm", "unknown stack 'vlm'; nearest: vllm "),
    ("gate --stack loder=vllm", "unknown layer 'loder'; nearest: loader "),
    ("gate --stack loader=", "unknown stack ''"),
    ("gate --profile sm120 --stack reference", "cannot be judged under the GPU profile sm120: use --emulate sm120"),
    ("gate --profile sm120 --stack loader=reference", "cannot be judged under the GPU profile sm120"),
    (
        "gate --profile cpu --backend flashinfer_cutlas",
        "unknown backend 'flashinfer_cutlas'; nearest: flashinfer_cutlass ",
    ),
    (
        "gate --profile cpu --geometry deepseek-v4-flsh",
        "unknown geometry 'deepseek-v4-flsh'; nearest: deepseek-v4-flash ",
    ),
    (
        "gate --profile cpu --geometry /nonexistent/config.json",
        "not a readable config.json: No such file",
    ),
    ("gate --profile cpu --layers loder", "unknown layer 'loder'; nearest: loader "),
    ("gate --profile cpu --layers=", "--layers is empty: name a layer"),
    ("gate --profile cpu --layers plan --claim graph.*", "--claim graph.* is outside of --layers plan"),
    ("selftest --layers=", "--layers is empty: name a layer"),
    ("selftest --layers loader --fault graph-frozen-routes", "of layer graph, outside of --layers loader"),
    ("gate --profile cpu --layers ,", "--layers ',': an empty name beside a comma"),
    ("gate --profile cpu --layers attention,", "--layers 'attention,': an empty name beside a comma"),
    ("gate --profile cpu --policy auditt", "unknown policy 'auditt'; nearest: audit "),
    ("gate --profile cpu --claim loader.w2.ofsets", "unknown claim 'loader.w2.ofsets'; nearest: loader.w2.offsets "),
    ("gate --profile cpu --repair w2-unit", "unknown repair 'w2-unit'; nearest: w2-units "),
    ("gate --profile cpu --policy release --layers loader", "policy release refuses a partial scope"),
    ("gate --profile cpu --policy release --repair w2-units", "policy release refuses a partial scope, a repair"),
    ("gate --profile cpu --policy release --force-shard", "policy release refuses"),
    ("gate --profile cpu --policy release --claim loader.w2.offsets", "policy release refuses --claim"),
    ("gate --profile cpu --resume", "--resume needs --run-dir"),
    ("gate --profile cpu --waivers none.toml", "--waivers none.toml: "),
    ("gate --profile cpu --json none/x.json", "--json none/x.json: not writable"),
    ("gate --profile cpu --json /", "--json /: not writable"),
    ("gate --profile cpu --then nosuchcommand", "--then 'nosuchcommand' names no command"),
    ("gate --profile cpu --then ''", "--then '' names no command"),
    ("gate --nosuch", "No such option"),
    ("gate more words", "unexpected extra argument"),
    ("gate --profile", "requires an argument"),
    ("gate --profil sm120", "--profile"),
    ("gat", "No such command 'gat'"),
    ("", "no command given"),
    ("selftest --stack refrence", "unknown stack 'refrence'; nearest: reference "),
    ("selftest --fault half-fxi", "unknown fault 'half-fxi'; nearest: half-fix "),
    ("selftest --fault half-fix --fault nosuch", "unknown fault 'nosuch'; nearest: "),
    ("selftest --backend cutlas", "unknown backend 'cutlas'; nearest: flashinfer_cutlass "),
    ("selftest --json none/x.json", "--json none/x.json: not writable"),
    ("map w2_wieght", "unknown parameter 'w2_wieght'; nearest: w2_weight "),
    ("map w2_weight --tp 0", "--tp is '0'"),
    ("map w2_weight --emulate sm12", "unknown profile 'sm12'; nearest: sm120 "),
    ("map", "Missing argument 'parameter'"),
    ("explain loader.w2.ofsets", "unknown claim 'loader.w2.ofsets'; nearest: loader.w2.offsets "),
    ("claims --layer loder", "unknown layer 'loder'; nearest: loader "),
    ("doctor --json none/x.json", "--json none/x.json: not writable"),
    ("doctor --vllm-python none/python", "--vllm-python none/python: no such file"),
    ("doctor --vllm-source none", "--vllm-source none: no such folder"),
]


def _wrong(conformance, tmp_path, *words: str) -> str:
    done = conformance(*words)
    assert (done.code, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1 and done.err.startswith("conformance: ")
    assert list(tmp_path.iterdir()) == []
    return done.err


@pytest.mark.parametrize(("line", "words"), NAMES, ids=[line for line, _ in NAMES])
def test_wrong_names(conformance, tmp_path, line, words):
    parts = ["" if part == "''" else part for part in line.split()]
    assert words in _wrong(conformance, tmp_path, *parts)


@pytest.mark.parametrize(
    "tp", ["0", "-1", "3.5", "abc", "99999", "1025", "", " 3", "1e2", "0x3", "²", "٣", "+3", "3_0", "9" * 5000]
)
@pytest.mark.parametrize("command", ["gate", "map w2_weight"])
def test_wrong_tp(conformance, tmp_path, tp, command):
    said = _wrong(conformance, tmp_path, *command.split(), "--profile", "cpu", "--tp", tp)
    assert TP in said and len(said) < 200


@pytest.mark.parametrize("tp", ["1", "3", "1024"])
def test_the_edges_of_tp_are_no_wrong_calls(tp):
    from conformance.gate.settings import Settings, resolve

    assert resolve(Settings(profile="cpu", tp=tp)).target.tp == int(tp)


@pytest.mark.parametrize("path", ["/proc/run", "/dev/null/run", "/dev/null"])
def test_a_run_folder_that_cannot_be_written(conformance, tmp_path, path):
    done = conformance("gate", "--profile", "cpu", "--geometry", "deepseek-v4-tiny", "--run-dir", path)
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert f"--run-dir {path}: not writable" in done.err


def test_a_run_folder_twice(conformance):
    words = ["gate", "--profile", "cpu", "--geometry", "deepseek-v4-tiny", "--layers", "plan", "--run-dir", "run"]
    assert conformance(*words).code == 0
    again = conformance(*words)
    assert (again.code, len(again.err.splitlines())) == (2, 1)
    assert "already holds a run; add --resume" in again.err


def test_an_interpreter_that_is_none(conformance):
    words = ["gate", "--profile", "cpu", "--stack", "vllm", "--vllm-python", "none/python", "--run-dir", "run"]
    done = conformance(*words)
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert "--vllm-python none/python: no such file" in done.err


def test_unbalanced_quotes(conformance, tmp_path):
    assert "No closing quotation" in _wrong(conformance, tmp_path, "gate", "--profile", "cpu", "--then", "echo 'a")


def test_a_full_disk_is_one_line_and_no_verdict(conformance, monkeypatch, tmp_path):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("conformance.gate.folder.os.fsync", full)
    done = conformance("gate", "--profile", "cpu", "--layers", "plan", "--run-dir", str(tmp_path / "run"))
    assert done.code == 3
    assert done.err == "conformance: no space left: free some, then --resume goes on with the run\n"
    assert not (tmp_path / "run" / "verdict.json").exists()


def test_a_geometry_that_is_a_path_and_is_not_there(conformance):
    done = conformance("gate", "--profile", "cpu", "--geometry", "/not/there/config")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "no such file or folder" in done.err
