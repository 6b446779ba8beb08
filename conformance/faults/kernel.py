"""The seam of the MoE layer: the weights that the kernel is given, what it is asked, its activation, its output."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from conformance.errors import NotSupported
from conformance.faults.seams import LoaderFault
from conformance.stacks.protocols import (
    LoadedWeights,
    MoeCall,
    MoeCalls,
    MoeCapabilities,
    MoeKernel,
    MoeLayer,
    MoeRequest,
    ParameterInfo,
)

if TYPE_CHECKING:
    import torch

    from conformance.stacks.compile.protocol import CompileResult, CompileUnit


class Activation(Protocol):
    def __call__(
        self, gate: torch.Tensor, up: torch.Tensor, limit: float | None, alpha: float, beta: float
    ) -> torch.Tensor: ...


class Run(NamedTuple):
    """One call of the kernel. `inner` runs the clean kernel; `number` counts a layer's calls from 0, `kept` is
    the layer's notes for later ones, `shared` those of all layers of the kernel."""

    inner: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]
    request: MoeRequest
    number: int
    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor
    out: torch.Tensor
    tactic: int | None = None
    kept: dict[str, torch.Tensor] = {}  # noqa: RUF012
    shared: dict[int, Any] = {}  # noqa: RUF012


class MoeFault(NamedTuple):
    """Each hook may be None.

    `loader`: the weights come from a loader with that fault. `weights` changes bytes of (parameter, expert) in place,
    (rows, cols); `from_expert` reads another expert's instead. `limit` replaces the SwiGLU limit, `activation` the
    activation itself, `quantise` the quantisation to `scheme` of x or of the activation (its second argument: `input`
    or `activation`; its third the global scale, if it has one), both only where the layer lets it, `run` the call.
    `call` changes what the adapter says it would call elsewhere, `compiled` what a compiler made for another GPU.
    `rank`: the only rank whose weights and calls are hit.
    """

    loader: LoaderFault | None = None
    weights: Callable[[str, int, torch.Tensor], None] | None = None
    from_expert: Callable[[str, int], int] | None = None
    limit: Callable[[float | None], float | None] | None = None
    activation: Activation | None = None
    run: Callable[[Run], None] | None = None
    call: Callable[[list[MoeCall]], None] | None = None
    compiled: Callable[[CompileUnit, CompileResult], None] | None = None
    rank: int | None = None
    quantise: Callable[[torch.Tensor, str, float], torch.Tensor] | None = None
    scheme: str = "mxfp8"

    def spoil(self, weights: LoadedWeights, rank: int) -> LoadedWeights:
        spares = not (self.weights or self.from_expert) or self.rank not in (None, rank)
        return weights if spares else _SpoiltWeights(weights, self)


class _SpoiltWeights:
    def __init__(self, inner: LoadedWeights, fault: MoeFault):
        self._inner, self._fault = inner, fault

    def info(self, parameter: str) -> ParameterInfo:
        return self._inner.info(parameter)

    def read(self, parameter: str, first: int, last: int, device: str = "cpu") -> torch.Tensor:
        data = self._inner.read(parameter, first, last, device)
        for expert in range(first, last):
            if self._fault.from_expert and (other := self._fault.from_expert(parameter, expert)) != expert:
                data[expert - first] = self._inner.read(parameter, other, other + 1, device)[0]
            if self._fault.weights:
                self._fault.weights(parameter, expert, data[expert - first])
        return data


class FaultyCalls:
    def __init__(self, inner: MoeCalls, fault: Callable[[list[MoeCall]], None]):
        self._inner, self._fault = inner, fault

    def __call__(self, request: MoeRequest, capability: tuple[int, int], tokens: int, slots: int) -> list[MoeCall]:
        calls = self._inner(request, capability, tokens, slots)
        self._fault(calls)
        return calls


class FaultyMoe:
    def __init__(self, inner: MoeKernel, fault: MoeFault):
        self._inner, self._fault = inner, fault
        self._shared: dict[int, Any] = {}

    def capabilities(self) -> MoeCapabilities:
        return self._inner.capabilities()

    def open(self, request: MoeRequest) -> MoeLayer:
        import msgspec

        asked = request
        if self._fault.limit:
            asked = msgspec.structs.replace(request, limit=self._fault.limit(request.limit))
        layer = self._inner.open(asked)
        if self._fault.activation:
            if not hasattr(layer, "activation"):
                raise NotSupported("this kernel's activation cannot be replaced")
            layer.activation = self._fault.activation
        if self._fault.quantise:
            if not hasattr(layer, "quantise") or self.capabilities().scheme != self._fault.scheme:
                raise NotSupported(
                    f"this kernel's quantisation to {self._fault.scheme} cannot be replaced, if it has one"
                )
            layer.quantise = self._fault.quantise
        return _FaultyLayer(layer, self._fault, request, self._shared)


class _FaultyLayer:
    def __init__(self, inner: MoeLayer, fault: MoeFault, request: MoeRequest, shared: dict[int, Any]):
        self._inner, self._fault, self._request, self._shared = inner, fault, request, shared
        self._calls = 0
        self._kept: dict[str, torch.Tensor] = {}

    def run(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        out: torch.Tensor,
        tactic: int | None = None,
    ) -> None:
        def inner(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, out: torch.Tensor) -> None:
            self._inner.run(x, ids, weights, out, tactic)

        if self._fault.run and self._fault.rank in (None, self._request.rank):
            known = self._request, self._calls, x, ids, weights, out, tactic, self._kept, self._shared
            self._fault.run(Run(inner, *known))
        else:
            inner(x, ids, weights, out)
        self._calls += 1

    def tactics(self) -> int:
        return self._inner.tactics()

    def close(self) -> None:
        self._inner.close()
