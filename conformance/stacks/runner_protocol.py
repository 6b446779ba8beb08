"""Layer `quant`: a MoE runner on NVFP4 weights, from tokens and routes to their sum, and the shared expert beside it.

    y_t = sum_j w_tj Down_e( Q( SwiGLU( Q(x_t) W13_e ) ) ),  e = id_tj

Ids are global; a rank holds experts [first, first + E). Other ids, -1, and ids that no expert has contribute nothing.
Weights are not normalised inside. Source: NVFP4 contract, S9 and S10.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import msgspec

from conformance.stacks.quant_protocol import Nvfp4Rules, Quantized, QuantizedWeight

if TYPE_CHECKING:
    import torch


class RunnerCapabilities(msgspec.Struct, frozen=True):
    """`rounding`: of gate and up, as SwigluCapabilities has it. `slot`: the type that a slot's result is stored in
    before slots are summed in float32. `steps`: I and H are multiples of these. `tokens`: the most in one call; more
    are refused. `experts`: the most on one rank. `deterministic`: do tokens in another order, or another batch, keep
    their bits? `offers`: of `stages`, `count`, `shared`.
    """

    runs: str
    offers: frozenset[str] = frozenset()
    device: str = "cpu"
    rules: Nvfp4Rules = Nvfp4Rules()
    rounding: Literal["once", "bf16_h"] = "once"
    slot: Literal["float32", "bfloat16"] = "bfloat16"
    output: Literal["bfloat16", "float32"] = "bfloat16"
    accumulation: float = 2.0**-20
    steps: tuple[int, int] = (16, 32)
    tokens: int = 512
    experts: int = 16
    deterministic: bool = True
    notes: tuple[str, ...] = ()


class RunnerRequest(NamedTuple):
    """One rank. `w13` (E, 2 I, H), [gate; up], global scales (E, 2); `w2` (E, H, I), (E,). `experts`: of all ranks.
    Input and activation are quantised by static global scales (value = code * scale * global scale)."""

    w13: QuantizedWeight
    w2: QuantizedWeight
    first: int
    experts: int
    limit: float | None
    input_scale: float
    activation_scale: float


class Stages(NamedTuple):
    """What a call made on its way, a row for each of n pairs of token and slot that this rank answers, in any order.

    `x`, `quantized`: NVFP4, as rows and blocks. `activation` (n, I), `y` (n, H): as stored; without routing weights."""

    token: torch.Tensor
    slot: torch.Tensor
    x: Quantized
    activation: torch.Tensor
    quantized: Quantized
    y: torch.Tensor
    out: torch.Tensor


class MoeRunner(Protocol):
    """A stack may offer `moe_runner()`."""

    def capabilities(self) -> RunnerCapabilities: ...

    def prepare(self, request: RunnerRequest) -> Any:
        """A handle. The tensors given are overwritten once this returns."""

    def run(self, handle: Any, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, out: torch.Tensor) -> None:
        """x (T, H) bfloat16, ids (T, k) int32, weights (T, k) float32; weights of empty slots may be anything. Writes
        all of `out` (T, H), which comes poisoned, and nothing else. Raises StackRefused for more tokens than
        declared."""

    def stages(self, handle: Any, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> Stages:
        """The same call, with what it made on its way."""

    def count(self, ids: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
        """ids (T, k) -> how many slots each of all experts has (E,), and where each begins among them, sorted
        (E + 1,). Ids that are no expert's are not counted."""

    def shared(self, handle: Any, x: torch.Tensor, out: torch.Tensor) -> None:
        """The shared expert: a handle of one expert, every token, no routing weight and no routed scaling factor."""

    def close(self, handle: Any) -> None: ...
