"""What a run is about: model, size, backends and capability, and what the profile says of them."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from conformance.geometry import Geometry
from conformance.stacks.protocols import ExpertsRequest, Vetted


class Combination(NamedTuple):
    """What a guard is asked about, at the run's geometry and tensor-parallel size. `capability` None: no CUDA."""

    attention: str | None
    moe: str
    capability: tuple[int, int] | None
    expert_parallel: bool = False
    draft: bool = False

    @property
    def words(self) -> str:
        more = [word for word, on in (("expert parallel", self.expert_parallel), ("draft", self.draft)) if on]
        pair = f"{self.attention or 'default'} attention with {self.moe} MoE on {platform(self.capability)}"
        return ", ".join([pair, *more])


def platform(capability: tuple[int, int] | None) -> str:
    return "no CUDA" if capability is None else f"{capability[0]}.{capability[1]}"


class Target(msgspec.Struct, frozen=True):
    """What is judged: model, tensor-parallel size, backend pair and the CUDA capability it is meant for."""

    geometry: Geometry
    tp: int
    backend: str
    attention: str | None
    capability: tuple[int, int] | None
    #: Kernel roundings that the profile's data knows for this backend, in elements.
    intermediate_roundings: tuple[int, ...]
    hidden_roundings: tuple[int, ...]
    force: bool = False
    #: Attributes that `--repair` declares on parameters before loading.
    attributes: dict[str, dict[str, int]] = {}
    seed: int = 20261129
    #: Every pair that any profile vets for virtual TP.
    vetted: tuple[Vetted, ...] = ()
    #: What the profile's own MoE backend multiplies MXFP4 weights with; None for another backend.
    arithmetic: str | None = None
    #: Does the profile list expert parallelism, where nothing needs virtual TP?
    expert_parallel: bool = False
    #: Has its MoE backend tactics that could be pinned?
    tactics: bool = True
    #: More batch sizes, which take minutes on a CPU.
    nightly: bool = False
    #: Layer e2e: the checkpoint that engines serve, the sizes that are compared (empty: the default), a file of limits.
    model: str = ""
    sizes: tuple[int, ...] = ()
    limits: str = ""
    #: The MoE backend that was asked for by name, and that engines on a GPU are started with; empty: what they pick.
    asked: str = ""
    #: The root URL of a server that is up, and the URL, or the run folder, that it is compared with.
    endpoint: str = ""
    against: str = ""
    #: What the backend's kernel reads: `as loaded`, or the name of a layout; empty where no recipe is known.
    layout: str = ""
    #: Faults are planted: the checks are judged, and no machine.
    planting: bool = False
    #: Head counts that the profile's attention kernels take; empty: any.
    head_paddings: tuple[int, ...] = ()
    #: How the output projection's scales are laid out on this capability, by DeepGEMM's recipe; empty: not known.
    output_scales: str = ""
    #: Why nobody in this run's scope chooses MoE kernels; empty where somebody does, or should.
    choiceless: str = ""

    @property
    def vetted_here(self) -> list[tuple[str, str]]:
        """(attention, MoE) pairs vetted on this capability."""
        return [(attention, moe) for capability, attention, moe in self.vetted if capability == self.capability]

    def experts_request(self, rank: int, experts: int) -> ExpertsRequest:
        return ExpertsRequest(
            self.geometry,
            self.tp,
            rank,
            self.backend,
            experts,
            self.capability,
            self.attention,
            self.force,
            self.attributes,
        )
