"""The gate's options on pytest, and which run they ask for."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import pytest

from conformance.errors import UsageError

if TYPE_CHECKING:
    from conformance.gate.settings import Resolved

#: Field of Settings -> help. Each is an option of the same name on `conformance gate`.
_VALUES = {
    "profile": "Hardware profile; default: the one that -m names, else the GPU found, else cpu.",
    "emulate": "Emulate a GPU profile on the reference stack; implies --profile cpu.",
    "stack": "Stack under test, or LAYER=STACK,...; default: the profile's.",
    "geometry": "Embedded geometry, or the path of a config.json.",
    "tp": "Tensor-parallel size; with --layers e2e several, as in 2,3.",
    "model": "Folder of a checkpoint that engines serve end to end.",
    "limits": "File of calibrated limits for that model.",
    "endpoint": "Root URL of a server that is up: judged in layer e2e.",
    "against": "What --endpoint is compared with: the URL of another server, or a run folder.",
    "backend": "MoE backend; default: the profile's.",
    "layers": "Comma-separated layers; makes the scope partial.",
    "policy": "full, audit or release.",
    "run_dir": "Run folder; default: runs/TIME-PROFILE-STACK.",
    "vllm_python": "Interpreter that holds the vLLM to test; default: this one.",
    "vllm_source": "vLLM source checkout, put first on that interpreter's path.",
    "python": "Interpreter that holds the library whose quantisers are judged.",
    "loader_run": "Run folder whose recorded loader maps feed the MoE kernel.",
    "checkpoint": "Folder of a safetensors checkpoint: its config.json, names, types and shapes are judged.",
    "waivers": "TOML file of waivers: claim, issue, reason, until.",
    "repair": "Mend known defects at the fault seam (w2-units); the verdict says so.",
}
_FLAGS = {
    "resume": "Go on with the broken run in --run-dir.",
    "force_shard": "Go round the stack's refusal of the configuration.",
    "checkpoint_bytes": "Compare what is loaded with the bytes of --checkpoint's files.",
    "nightly": "Larger and odder batches too (M = 0, 3, 129, 4096), and every size that is captured: minutes on a CPU.",
    "no_gate": "Run blocked claims all the same.",
}
_ALLOW_INCOMPLETE = "Exit with 0 where the verdict is INCOMPLETE."


def add(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "conformance: what is judged (as on `conformance gate`)")
    for field, words in _VALUES.items():
        group.addoption(_flag(field), dest=_dest(field), default=None, metavar=field.upper(), help=words)
    for field, words in (*_FLAGS.items(), ("allow_incomplete", _ALLOW_INCOMPLETE)):
        group.addoption(_flag(field), dest=_dest(field), action="store_true", default=False, help=words)


class Asked:
    """What the command line asks for. Resolved on first need, since most sessions of pytest judge nothing."""

    def __init__(self, config: pytest.Config):
        found = {field: config.getoption(_dest(field)) for field in (*_VALUES, *_FLAGS)}
        #: Fields of Settings as given, empty values too.
        self.given = {field: value for field, value in found.items() if value not in (None, False)}
        self.allow_incomplete: bool = config.getoption(_dest("allow_incomplete"))
        self._markers: str = config.getoption("markexpr", "").strip()
        self._keywords: str = config.getoption("keyword", "").strip()

    @property
    def judging(self) -> bool:
        """Is a verdict due even if no claim is selected?"""
        return bool(self.given or self.allow_incomplete or self.marked_profile)

    @property
    def narrowing(self) -> bool:
        """Is there a -k, or a -m other than a profile alone? Then only what it selects is judged."""
        return bool(self._keywords or (self._markers and not self.marked_profile))

    @cached_property
    def marked_profile(self) -> str | None:
        """The profile that -m names exactly."""
        if not self._markers:
            return None
        import hardware_profiles

        return self._markers if self._markers in hardware_profiles.names() else None

    @cached_property
    def run(self) -> Resolved:
        """Raises pytest.UsageError with the one line that says what is wrong."""
        from conformance.gate.settings import Settings, resolve

        if "resume" in self.given and "run_dir" not in self.given:
            raise pytest.UsageError("--resume needs --run-dir: which run shall go on?")
        try:
            return resolve(Settings(**self.given), self.marked_profile)
        except UsageError as error:
            raise pytest.UsageError(str(error)) from None


ASKED = pytest.StashKey[Asked]()


def _flag(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def _dest(field: str) -> str:
    return f"conformance_{field}"
