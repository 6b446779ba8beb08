"""Layer `moe`, before any kernel runs: loaded parameters rearranged as this adapter hands them to FlashInfer's CUTLASS
MoE, by FlashInfer's own helpers, a few experts at a time. They take tensors on a GPU alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from conformance.errors import NotSupported
from conformance.stacks.flashinfer import library as functions
from conformance.stacks.flashinfer import prepare
from conformance.stacks.flashinfer.errors import stack_errors
from conformance.stacks.flashinfer.library import Library
from conformance.stacks.flashinfer.moe import scheme
from conformance.stacks.prepare_protocol import Form, Prepared, PrepareInfo, PrepareRequest
from conformance.stacks.protocols import SHARDS, ParameterInfo

#: What the kernels' widths are multiples of, in elements. Source: vLLM oracle/mxfp4.py for `flashinfer_cutlass`; SM90's
#: helper refuses scales that make no whole 64 x 128 blocks.
_STEP = 128


class Device(NamedTuple):
    """Where helpers run: torch's name, the GPU's capability (None: no GPU), and words."""

    name: str
    capability: tuple[int, int] | None
    words: str


def gpu() -> Device:
    if not torch.cuda.is_available():
        return Device("cuda", None, "no CUDA GPU")
    return Device("cuda", torch.cuda.get_device_capability(), torch.cuda.get_device_name())


class FlashInferPreparation:
    """See prepare_protocol.Preparation."""

    def __init__(self, device: Device | None = None, library: Callable[[], Library] = functions.real):
        self._device, self._library = device or gpu(), library

    def open(self, request: PrepareRequest) -> FlashInferPrepared:
        """Raises NotSupported where this machine's GPU is not the one that is prepared for."""
        wanted, here = request.capability, self._device.capability
        if wanted is None:
            raise NotSupported("FlashInfer rearranges weights for CUDA GPUs; the profile has none")
        if here != wanted:
            found = f"{self._device.words}, {here[0]}.{here[1]}" if here else "torch sees none here"
            raise NotSupported(
                f"FlashInfer's helpers rearrange weights on a GPU: one of capability {wanted[0]}.{wanted[1]} is needed "
                f"({found}); run the gate there"
            )
        with stack_errors("loading FlashInfer's helpers"):
            return FlashInferPrepared(request, self._library(), self._device)


class FlashInferPrepared:
    """See prepare_protocol.PreparedLayer."""

    def __init__(self, request: PrepareRequest, library: Library, device: Device):
        assert device.capability is not None
        found = scheme(device.capability)
        self._library, self._device = library, device.name
        self._arrange = prepare.sm90 if found == "bf16" else prepare.mxfp8
        width, hidden = (-(-size // _STEP) * _STEP for size in (request.share, request.geometry.hidden_size))
        self.info = PrepareInfo(
            kernel=f"flashinfer_cutlass, {found} x MXFP4",
            scheme=found,
            loaded={
                "w13_weight": ParameterInfo(2 * width, hidden // 2, "uint8"),
                "w13_weight_scale": ParameterInfo(2 * width, hidden // 32, "uint8"),
                "w2_weight": ParameterInfo(hidden, width // 2, "uint8"),
                "w2_weight_scale": ParameterInfo(hidden, width // 32, "uint8"),
            },
            helpers="FlashInfer's own helpers",
            device=device.words,
        )

    def convert(self, loaded: dict[str, torch.Tensor]) -> dict[str, Prepared]:
        with stack_errors("rearranging weights"):
            experts = len(loaded["w2_weight"])
            made = self._arrange(self._library, _Given(loaded), experts, self._device)
            w13_scale, w2_scale = (s for s in made.scales if s.dim() > 1)  # without MXFP8's global scales
            done = dict(zip(SHARDS, (made.fc1, w13_scale, made.fc2, w2_scale), strict=True))
            return {name: _told(data) for name, data in done.items()}

    def close(self) -> None:
        pass


class _Given:
    """A few experts' loaded parameters, as protocols.LoadedWeights."""

    def __init__(self, loaded: dict[str, torch.Tensor]):
        self._loaded = loaded

    def info(self, parameter: str) -> ParameterInfo:
        _, rows, cols = self._loaded[parameter].shape
        return ParameterInfo(rows, cols, "uint8")

    def read(self, parameter: str, first: int, last: int, device: str = "cpu") -> torch.Tensor:
        return self._loaded[parameter][first:last].to(device)


def _told(given: torch.Tensor) -> Prepared:
    """What the kernel is given, back as bytes: views as wider integers are undone."""
    form = Form(tuple(given.view(torch.uint8).shape), "uint8", given.is_contiguous())
    return Prepared(given.contiguous().view(torch.uint8).flatten(1).cpu(), form)
