"""The run folder: manifest, evidence written claim by claim, and what a later `--resume` reads back."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

import hardware_profiles
from conformance import TREE, __version__
from conformance.errors import UsageError
from conformance.gate.settings import Resolved
from conformance.result import MEASURED, ClaimResult
from conformance.stacks.protocols import StackInfo

_PACKAGES = ("torch", "msgspec", "execnet", "pytest", "numpy")
#: Environment that changes what stacks do; its values go into the manifest.
_ENVIRONMENT = ("CUDA_", "NCCL_", "VLLM_", "FLASHINFER_", "TORCH_", "OMP_", "CUTE_DSL_", "PYTHONPATH")
#: Options that do not change what is measured.
_SAME_RUN = ("run_dir", "resume")


class Manifest(msgspec.Struct):
    """What someone else needs to repeat the run."""

    harness: str
    harness_commit: str
    started: str
    python: str
    platform: str
    gpu: str
    packages: dict[str, str]
    environment: dict[str, str]
    settings: dict[str, Any]
    seed: int
    command: list[str]
    stacks: dict[str, StackInfo] = {}


class RunFolder:
    """Open for one process at a time. `known` holds the measured results of an earlier, broken run."""

    def __init__(self, run: Resolved, path: Path, resume: bool):
        self.path = path
        self.known: dict[str, ClaimResult] = {}
        earlier = path / "manifest.json"
        if resume and not earlier.exists():
            raise UsageError(f"--resume: {path} holds no run to go on with (no manifest.json)")
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._evidence = (path / "evidence.jsonl").open("ab")
        except OSError as error:
            raise UsageError(f"--run-dir {path}: not writable: {error.strerror}") from None
        try:
            fcntl.flock(self._evidence, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"--run-dir {path}: another run is using it") from None
        if earlier.exists():
            if not resume:
                raise UsageError(f"--run-dir {path} already holds a run; add --resume, or name another folder")
            self.manifest = self._reopen(run, earlier)
        else:
            self.manifest = _manifest(run)
            self._save_manifest()

    def record(self, result: ClaimResult) -> None:
        """Append one claim and make sure that it survives a kill."""
        self._evidence.write(msgspec.json.encode(result) + b"\n")
        self._evidence.flush()
        os.fsync(self._evidence.fileno())

    def saw_stack(self, info: StackInfo) -> None:
        """Note who is under test. Raises UsageError if a resumed run meets other code than the broken one did."""
        before = self.manifest.stacks.get(info.name)
        if before and (before.version, before.identity) != (info.version, info.identity):
            raise UsageError(
                f"--resume: stack {info.name} has changed since the run began "
                f"({before.version} then, {info.version} now, or its files differ); start a new run"
            )
        self.manifest.stacks[info.name] = info
        self._save_manifest()

    def write(self, name: str, data: bytes) -> Path:
        """Write a file whole or not at all."""
        target = self.path / name
        partial = target.with_name(f".{name}.partial")
        try:
            partial.write_bytes(data)
            partial.replace(target)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        return target

    def abandon(self) -> None:
        """A run that was refused before it measured anything leaves no folder in the way of the corrected call."""
        evidence, manifest = self.path / "evidence.jsonl", self.path / "manifest.json"
        if evidence.stat().st_size == 0 and {p.name for p in self.path.iterdir()} <= {evidence.name, manifest.name}:
            evidence.unlink()
            manifest.unlink(missing_ok=True)
            self.path.rmdir()

    def close(self) -> None:
        self._evidence.close()

    def _save_manifest(self) -> None:
        self.write("manifest.json", msgspec.json.format(msgspec.json.encode(self.manifest), indent=1))

    def _reopen(self, run: Resolved, earlier: Path) -> Manifest:
        try:
            manifest = msgspec.json.decode(earlier.read_bytes(), type=Manifest)
        except (OSError, msgspec.DecodeError) as error:
            raise UsageError(f"--resume: {earlier}: not a readable manifest: {error}") from None
        then, now = manifest.settings, recorded_settings(run)
        changed = sorted(k for k in {*then, *now} if then.get(k) != now.get(k))
        if changed:
            k = changed[0]
            raise UsageError(f"--resume: {k} was {then.get(k)!r} in that run and is {now.get(k)!r} now")
        if manifest.harness_commit != harness_commit():
            raise UsageError("--resume: the harness itself has changed since that run; start a new one")
        self.known = {r.id: r for r in read_evidence(self.path) if r.status in MEASURED}
        self._drop_partial_line()
        return manifest

    def _drop_partial_line(self) -> None:
        data = (self.path / "evidence.jsonl").read_bytes()
        if data and not data.endswith(b"\n"):
            self._evidence.truncate(data.rfind(b"\n") + 1)


def read_evidence(path: Path) -> list[ClaimResult]:
    """The results of a run folder, the last one of each claim. A last line cut off by a kill is left out.

    Raises UsageError for any other line that cannot be read.
    """
    try:
        lines = (path / "evidence.jsonl").read_bytes().split(b"\n")
    except OSError as error:
        raise UsageError(f"{path}: no readable evidence.jsonl: {error.strerror}") from None
    found: dict[str, ClaimResult] = {}
    for number, line in enumerate(lines[:-1], 1):
        try:
            result = msgspec.json.decode(line, type=ClaimResult)
        except msgspec.DecodeError as error:
            raise UsageError(f"{path}/evidence.jsonl:{number}: {error}") from None
        found[result.id] = result
    return list(found.values())


def default_path(run: Resolved) -> Path:
    """`runs/TIME-PROFILE-STACK` under the working directory."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return (
        Path("runs") / f"{stamp}-{run.profile.name}-{run.stack_words.replace('=', '-').replace(',', '-')}-{os.getpid()}"
    )


def recorded_settings(run: Resolved) -> dict[str, Any]:
    """The options that decide what is measured, with the digests of what they name."""
    given: dict[str, Any] = msgspec.to_builtins(run.settings)
    model = hashlib.sha256(msgspec.json.encode(run.target.geometry.config)).hexdigest()
    known = {"profile": run.profile.name, "geometry_sha256": model}
    if run.files:
        known["checkpoint_sha256"] = run.files.digest
    return {k: v for k, v in given.items() if k not in _SAME_RUN} | known


def _manifest(run: Resolved) -> Manifest:
    return Manifest(
        harness=__version__,
        harness_commit=harness_commit(),
        started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        python=sys.version.split()[0],
        platform=platform.platform(),
        gpu=hardware_profiles.found()[1],
        packages={name: _version(name) for name in _PACKAGES},
        environment={k: v for k, v in sorted(os.environ.items()) if k.startswith(_ENVIRONMENT)},
        settings=recorded_settings(run),
        seed=run.target.seed,
        command=sys.argv,
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def harness_commit() -> str:
    """Commit of the clone, with `+DIGEST` of what the working tree changes in it; empty outside a clone."""
    try:
        git = ["git", "-C", str(TREE)]
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10)
        changes = subprocess.run([*git, "diff", "HEAD"], capture_output=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    if head.returncode:
        return ""
    return head.stdout.strip() + (f"+{hashlib.sha256(changes).hexdigest()[:12]}" if changes.strip() else "")
