"""Hardware profiles as data, and the code that matches a GPU to one."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

_FOLDER = Path(__file__).parent
CPU = "cpu"


class MustPass(NamedTuple):
    """Claim patterns required for a policy, stack, geometry and tensor-parallel sizes ('*' and () mean any)."""

    policy: str
    stack: str
    geometry: str
    tp: tuple[int, ...]
    claims: tuple[str, ...]

    def applies(self, policy: str, stack: str, geometry: str, tp: int) -> bool:
        return (
            self.policy == policy
            and self.stack in ("*", stack)
            and self.geometry in ("*", geometry)
            and (not self.tp or tp in self.tp)
        )


class Profile(NamedTuple):
    """What a GPU family can run and must run. `capability` None: no CUDA.

    `backend` and `attention` are the production pair; `vetted` lists every pair that virtual TP may use.
    `arithmetic` is what its CUTLASS MoE multiplies MXFP4 weights with, for `--emulate`.
    `head_paddings` are the head counts that the attention kernels take; `shared_memory` is bytes a block.
    """

    name: str
    title: str
    capability: tuple[int, int] | None
    stack: str
    backend: str
    attention: str | None
    vetted: tuple[tuple[str, str], ...]
    head_paddings: tuple[int, ...]
    shared_memory: int
    must_pass: tuple[MustPass, ...]
    arithmetic: Literal["bf16", "mxfp8"] = "bf16"
    #: Is expert parallelism asked for too, where nothing needs virtual TP?
    expert_parallel: bool = False
    #: MoE backends that the stack may choose when it is not asked for one; its own `backend` always may be.
    unasked: tuple[str, ...] = ()
    #: How the FP8 output projection's scales are laid out, by DeepGEMM's recipe: `float32 128x128` is (1, 128, 128),
    #: `packed ue8m0` is (1, 1, 128). Empty: not known.
    output_scales: str = ""

    def required(self, policy: str, stack: str, geometry: str, tp: int) -> tuple[str, ...] | None:
        """Claim patterns of the first must-pass list that applies; None if there is none: then all are required."""
        return next((m.claims for m in self.must_pass if m.applies(policy, stack, geometry, tp)), None)


class Backend(NamedTuple):
    """Kernel roundings in elements (several where versions differ) and the attention backend it is paired with.

    `layout` is what its kernel reads: `as loaded`, `cutlass`, or empty where the harness knows no recipe.
    `arithmetic` is the one that it has whatever the profile (None: the profile's).
    """

    name: str
    intermediate: tuple[int, ...]
    hidden: tuple[int, ...]
    attention: str | None
    layout: str = ""
    arithmetic: Literal["bf16_steps", "nvfp4"] | None = None
    #: Does it have tactics that could be pinned? Marlin chooses its tiles by itself, from the shapes.
    tactics: bool = True


def names() -> list[str]:
    return sorted(path.stem for path in _FOLDER.glob("*.toml") if path.stem != "backends")


@cache
def load(name: str) -> Profile:
    """Raises KeyError for an unknown profile, TypeError or ValueError for data that does not fit."""
    if name not in names():
        raise KeyError(name)
    data: dict[str, Any] = tomllib.loads((_FOLDER / f"{name}.toml").read_text())
    lists = tuple(
        MustPass(
            m["policy"],
            m.get("stack", "*"),
            m.get("geometry", "*"),
            tuple(m.get("tp", ())),
            tuple(m["claims"]),
        )
        for m in data.pop("must_pass", ())
    )
    capability = data.pop("capability", None)
    return Profile(
        name=name,
        capability=tuple(capability) if capability else None,
        attention=data.pop("attention", None),
        vetted=tuple((a, m) for a, m in data.pop("vetted", ())),
        head_paddings=tuple(data.pop("head_paddings", ())),
        unasked=tuple(data.pop("unasked", ())),
        must_pass=lists,
        **data,
    )


@cache
def backends() -> dict[str, Backend]:
    data = tomllib.loads((_FOLDER / "backends.toml").read_text())
    return {
        name: Backend(
            name,
            tuple(b["intermediate"]),
            tuple(b["hidden"]),
            b.get("attention"),
            b.get("layout", ""),
            b.get("arithmetic"),
            b.get("tactics", True),
        )
        for name, b in data.items()
    }


@cache
def vetted() -> tuple[tuple[tuple[int, int] | None, str, str], ...]:
    """Every pair that any profile vets for virtual TP: (capability, attention, MoE)."""
    return tuple((p.capability, a, m) for p in map(load, names()) for a, m in p.vetted)


def for_capability(capability: tuple[int, int]) -> str | None:
    """The profile of exactly this CUDA capability, if there is one."""
    return next((name for name in names() if load(name).capability == capability), None)


def found() -> tuple[str | None, str]:
    """(profile, words) of the first GPU on this machine; (None, why) without a known one. Needs no CUDA context."""
    try:
        import pynvml
    except ImportError:
        return None, "nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            capability = tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle))
            name = pynvml.nvmlDeviceGetName(handle)
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return None, f"no NVIDIA GPU: {error}"
    profile = for_capability(capability)
    words = f"{name}, capability {capability[0]}.{capability[1]}"
    return profile, words if profile else f"{words}: no profile knows it"
