"""The reference stack's MoE kernel: a profile's arithmetic emulated on any torch device, slowly and openly.

Independent of `references/`: other decoders, tokens in the outer loop where that one has experts in blocks of channels,
FP32 throughout. What cannot matter is left out: scale groups in which every token of a chunk is zero, and rows of W2
that hold only zeros. A NaN scale is never left out. Its tactics sum the same products in another order.
"""

from __future__ import annotations

from typing import Literal

import torch

from conformance.errors import StackRefused
from conformance.stacks import reference_numerics as numerics
from conformance.stacks.protocols import LoadedWeights, MoeCapabilities, MoeRequest

_CHUNK = 128
_GROUP = 32
#: Tactics: into how many parts the sums of GEMM1 and of GEMM2 are split.
_SPLITS = ((1, 1), (2, 1), (1, 2), (3, 4))
#: Experts that checks open on a CPU: enough for every expert to have two neighbours.
_EXPERTS = 4


class ReferenceMoe:
    def __init__(self, scheme: Literal["bf16", "mxfp8", "nvfp4", "bf16_steps"], device: str = "cpu"):
        self._scheme, self._device = scheme, device

    def capabilities(self) -> MoeCapabilities:
        return MoeCapabilities(
            scheme=self._scheme,
            device=self._device,
            device_words=f"{self._device}, emulated in FP32",
            pins_tactics=True,
            experts=_EXPERTS,
            tokens=2048,
            threads=True,
        )

    def open(self, request: MoeRequest) -> ReferenceMoeLayer:
        return ReferenceMoeLayer(request, self._scheme, self._device)


class _Matrix:
    """One MXFP4 matrix of one expert (rows, n): decoded as far as it is needed."""

    def __init__(self, codes: torch.Tensor, scales: torch.Tensor, keep_rows: bool):
        self.rows = codes.shape[0]
        self._used = None if keep_rows else _rows_in_use(codes, scales)
        self._codes = codes if self._used is None else codes[self._used]
        self._scales = scales if self._used is None else scales[self._used]
        self._nan = (self._scales == 255).any(0)

    def times(self, x: torch.Tensor, parts: int) -> torch.Tensor:
        """x (M, n) float32 -> x W^T (M, rows), the sum over n split into so many parts."""
        grouped = x.view(x.shape[0], -1, _GROUP)
        groups = (((grouped != 0).any(-1).any(0)) | self._nan).nonzero().flatten()
        by_group = self._codes.unflatten(1, (self._scales.shape[1], _GROUP // 2))
        product = grouped.new_zeros((x.shape[0], len(self._codes)))
        for some in groups.tensor_split(parts):
            part = numerics.weights(by_group[:, some].flatten(1), self._scales[:, some])
            product += grouped[:, some].flatten(1) @ part.T
        if self._used is None:
            return product
        whole = product.new_zeros((x.shape[0], self.rows))
        whole[:, self._used] = product
        return whole


def _rows_in_use(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor | None:
    used = ((codes & 0x77) != 0).any(1) | (scales == 255).any(1)
    return None if bool(used.all()) else used.nonzero().flatten()


def swiglu(gate: torch.Tensor, up: torch.Tensor, limit: float | None, alpha: float, beta: float) -> torch.Tensor:
    """Limits as tensors: their minimum and maximum let a NaN through."""
    if limit is not None:
        ceiling = torch.full_like(gate, limit)
        gate, up = torch.minimum(gate, ceiling), torch.maximum(torch.minimum(up, ceiling), -ceiling)
    return gate / (1 + torch.exp(-alpha * gate)) * (up + beta)


def quantised(x: torch.Tensor, stage: str, global_scale: float) -> torch.Tensor:
    """`stage`: `input` or `activation`, alike here. MXFP8 has no global scale."""
    return numerics.to_mxfp8(x)


def quantised_nvfp4(x: torch.Tensor, stage: str, global_scale: float) -> torch.Tensor:
    """In units of the global scale."""
    return numerics.to_nvfp4(x, global_scale)


def swiglu_in_steps(
    gate: torch.Tensor, up: torch.Tensor, limit: float | None, alpha: float, beta: float
) -> torch.Tensor:
    """The same with SiLU rounded to BF16 before it meets up."""
    if limit is not None:
        ceiling = torch.full_like(gate, limit)
        gate, up = torch.minimum(gate, ceiling), torch.maximum(torch.minimum(up, ceiling), -ceiling)
    return numerics.to_bf16(gate / (1 + torch.exp(-alpha * gate))) * (up + beta)


class ReferenceMoeLayer:
    """One rank. `out` is what it adds: the caller sums ranks. A fault may replace `activation` and `quantise`."""

    def __init__(self, request: MoeRequest, scheme: str, device: str):
        self._request, self._quantised, self._steps = request, scheme in ("mxfp8", "nvfp4"), scheme == "bf16_steps"
        self.activation = swiglu_in_steps if self._steps else swiglu
        self.quantise = quantised_nvfp4 if scheme == "nvfp4" else quantised
        #: What sums are multiplied with: NVFP4's global scales.
        self._alphas = request.global_scales if scheme == "nvfp4" else (1.0, 1.0)
        self._weights: LoadedWeights = request.weights
        self._device = device
        w13, w2 = request.weights.info("w13_weight"), request.weights.info("w2_weight")
        self._width = w13.rows // 2
        self._hidden = w2.rows
        if w13.cols * 2 != w2.rows or w2.cols * 2 != self._width or self._width % _GROUP or self._hidden % _GROUP:
            raise StackRefused(f"w13 ({w13.rows}, {w13.cols}) and w2 ({w2.rows}, {w2.cols}) bytes make no MoE layer")
        self._experts = [self._prepared(expert) for expert in range(request.experts)]

    def _prepared(self, expert: int) -> tuple[_Matrix, _Matrix]:
        def read(name: str) -> torch.Tensor:
            return self._weights.read(name, expert, expert + 1, self._device)[0]

        return (
            _Matrix(read("w13_weight"), read("w13_weight_scale"), keep_rows=True),
            _Matrix(read("w2_weight"), read("w2_weight_scale"), keep_rows=False),
        )

    def run(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        out: torch.Tensor,
        tactic: int | None = None,
    ) -> None:
        if not 0 <= (tactic or 0) < len(_SPLITS):
            raise StackRefused(f"tactic {tactic} was asked for; there are {len(_SPLITS)}")
        highest = int(ids.max()) if ids.numel() else -1
        if highest >= len(self._experts):
            raise StackRefused(f"expert {highest} was asked for; there are {len(self._experts)}")
        for start in range(0, x.shape[0], _CHUNK):
            part = slice(start, start + _CHUNK)
            out[part] = self._chunk(x[part], ids[part], weights[part], _SPLITS[tactic or 0])[:, : out.shape[1]].to(
                out.dtype
            )

    def _chunk(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, splits: tuple[int, int]
    ) -> torch.Tensor:
        wide = torch.nn.functional.pad(x.float(), (0, self._hidden - x.shape[1]))
        if self._quantised:
            wide = self.quantise(wide, "input", self._alphas[0])
        slots = wide.new_zeros((*ids.shape, self._hidden))
        for expert in sorted(set(ids.flatten().tolist()) - {-1}):
            mine = ids == expert
            slots[mine] = self._expert(expert, wide[mine.nonzero()[:, 0]], splits)
        return (numerics.marlin_sum if self._steps else numerics.slot_sum)(slots, weights)

    def _expert(self, expert: int, x: torch.Tensor, splits: tuple[int, int]) -> torch.Tensor:
        w13, w2 = self._experts[expert]
        gate, up = numerics.to_bf16(w13.times(x, splits[0]) * self._alphas[0]).chunk(2, dim=1)
        r = self._request
        h = numerics.to_bf16(self.activation(gate, up, r.limit, r.alpha, r.beta))
        if self._quantised:
            h = self.quantise(h, "activation", self._alphas[1])
        return numerics.to_bf16(w2.times(h, splits[1]) * self._alphas[1])

    def tactics(self) -> int:
        return len(_SPLITS)

    def close(self) -> None:
        self._experts = []
