"""FlashInfer's NVFP4 and MXFP8: quantisers, scale tiles, a product and grouped products, as SM100 and SM120 are called.

Each call is made of a `QuantLibrary`: FlashInfer's functions, or the same bound to their signatures and noted down.
FlashInfer's global scale divides (2688 / amax); ours multiplies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from conformance.errors import NotSupported
from conformance.stacks.flashinfer import library
from conformance.stacks.protocols import MoeCall
from conformance.stacks.quant_calls_protocol import QuantCallRequest

_BLOCK, _TILE = 16, 128


class QuantLibrary(NamedTuple):
    nvfp4_quantize: Callable[..., Any]
    mxfp8_quantize: Callable[..., Any]
    mxfp4_quantize: Callable[..., Any]
    block_scale_interleave: Callable[..., Any]
    mm_fp4: Callable[..., Any]
    groupwise: Callable[..., Any]
    masked: Callable[..., Any]


def real() -> QuantLibrary:
    """Raises ImportError, AttributeError where this FlashInfer lacks one of them."""
    import flashinfer
    from flashinfer import gemm
    from flashinfer.cute_dsl import blockscaled_gemm

    return QuantLibrary(
        flashinfer.nvfp4_quantize,
        flashinfer.mxfp8_quantize,
        flashinfer.mxfp4_quantize,
        flashinfer.block_scale_interleave,
        flashinfer.mm_fp4,
        gemm.group_gemm_nvfp4_nt_groupwise,
        blockscaled_gemm.grouped_gemm_nt_masked,
    )


def noting(calls: list[MoeCall]) -> QuantLibrary:
    """The same functions by name; nothing of them runs."""
    answers: tuple[Callable[..., Any], ...] = (_nvfp4, _mxfp8, _mxfp4, _tiled, _product, _nothing, _nothing)
    return QuantLibrary(*(library.noted(one, answer, calls) for one, answer in zip(real(), answers, strict=True)))


def _ceil(n: int, step: int) -> int:
    return -(-n // step) * step


# --- the calls


def quantise(lib: QuantLibrary, x: torch.Tensor, global_scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """x (M, K) -> packed codes (M, K / 2), scales in tiles, uint8."""
    from flashinfer import SfLayout

    divisor = torch.tensor([1 / global_scale], dtype=torch.float32, device=x.device)
    codes, scales = lib.nvfp4_quantize(x, divisor, sfLayout=SfLayout.layout_128x4, do_shuffle=False)
    return codes.view(torch.uint8), scales.view(torch.uint8)


def tiles(lib: QuantLibrary, scales: torch.Tensor) -> torch.Tensor:
    """(E, R, C) plain -> (E, R to whole 128, C to whole 4) in tiles."""
    experts, rows, columns = scales.shape
    return lib.block_scale_interleave(scales.contiguous()).view(experts, _ceil(rows, _TILE), _ceil(columns, 4))


def linear(
    lib: QuantLibrary, x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, alpha: torch.Tensor, given: float
) -> torch.Tensor:
    """x (M, K) BF16, weight (N, K / 2) codes, `scales` in tiles (N to 128, C to 4), alpha (1,): of both sides."""
    codes, of_x = quantise(lib, x, given)
    out = torch.empty(len(x), len(weight), dtype=torch.bfloat16, device=x.device)
    lib.mm_fp4(
        codes,
        weight.T,
        of_x,
        scales.T,
        alpha,
        out_dtype=torch.bfloat16,
        out=out,
        block_size=_BLOCK,
        use_8x4_sf_layout=False,
        backend="cutlass",
        use_nvfp4=True,
    )
    return out


class Groups(NamedTuple):
    """Activations of groups: packed codes (rows, K / 2), plain scales, first rows (E,), multiples of four, sizes (E,),
    and alphas (E,), global scales of both sides."""

    codes: torch.Tensor
    scales: torch.Tensor
    offsets: list[int]
    sizes: list[int]
    alphas: torch.Tensor


def groupwise(lib: QuantLibrary, a: Groups, weights: torch.Tensor, scales: torch.Tensor, out: torch.Tensor) -> None:
    """SM120. Weights (E, N, K / 2), `scales` in tiles. Group i ends where the next begins; its scales begin at row
    (m_i + 127 i) // 128 * 128. Source: `group_gemm_nvfp4_groupwise_sm120.cuh`."""
    ends = [*a.offsets[1:], len(a.codes)]
    rows = (len(a.codes) + (_TILE - 1) * len(ends)) // _TILE * _TILE
    of_a = torch.zeros(rows, scales.shape[2], dtype=torch.uint8, device=a.codes.device)
    for number, (first, end) in enumerate(zip(a.offsets, ends, strict=True)):
        if end > first:
            tiled = tiles(lib, a.scales[None, first:end])[0]
            start = (first + (_TILE - 1) * number) // _TILE * _TILE
            of_a[start : start + len(tiled)] = tiled
    indptr = torch.tensor([*a.offsets, len(a.codes)], dtype=torch.int32, device=a.codes.device)
    lib.groupwise(a.codes, weights, of_a, scales, indptr, alpha=a.alphas, out=out)


def batched(lib: QuantLibrary, a: Groups, weights: torch.Tensor, scales: torch.Tensor, out: torch.Tensor) -> None:
    """SM100, CuTe DSL. Each group is a batch of as many rows as the largest has, to whole tiles."""
    experts, n = weights.shape[:2]
    rows = max(_ceil(max(a.sizes), _TILE), _TILE)
    codes = a.codes.new_zeros(experts, rows, a.codes.shape[1])
    of_a = a.scales.new_zeros(experts, rows, a.scales.shape[1])
    for e, (first, size) in enumerate(zip(a.offsets, a.sizes, strict=True)):
        codes[e, :size], of_a[e, :size] = a.codes[first : first + size], a.scales[first : first + size]
    made = torch.empty(experts, rows, n, dtype=torch.bfloat16, device=codes.device)
    lib.masked(
        (codes.permute(1, 2, 0), _atoms(tiles(lib, of_a))),
        (weights.permute(1, 2, 0), _atoms(scales)),
        made.permute(1, 2, 0),
        torch.tensor(a.sizes, dtype=torch.int32, device=codes.device),
        ab_dtype="float4_e2m1fn",
        sf_dtype="float8_e4m3fn",
        c_dtype="bfloat16",
        sf_vec_size=_BLOCK,
        alpha=a.alphas.view(1, 1, experts),
        alpha_dtype="float32",
    )
    for e, (first, size) in enumerate(zip(a.offsets, a.sizes, strict=True)):
        out[first : first + size] = made[e, :size]


def _atoms(tiled: torch.Tensor) -> torch.Tensor:
    """(E, R, C) in tiles -> the view (32, 4, R / 128, 4, C / 4, E) that CuTe DSL takes."""
    experts, rows, columns = tiled.shape
    return (
        tiled.view(torch.float8_e4m3fn).view(experts, rows // _TILE, columns // 4, 32, 4, 4).permute(3, 4, 1, 5, 2, 0)
    )


# --- what would be called


def calls(request: QuantCallRequest) -> dict[str, list[MoeCall]]:
    """Raises NotSupported below SM100: there FlashInfer's quantisers compile, and answer zeros."""
    if request.capability[0] not in (10, 12):
        major, minor = request.capability
        raise NotSupported(f"FlashInfer quantises to NVFP4 and MXFP8 on 10.x and 12.x; {major}.{minor} is neither")
    told: dict[str, list[MoeCall]] = {}
    silent = noting([])
    e, n, k = request.experts, request.n, request.k
    x = torch.zeros(request.tokens, k, dtype=torch.bfloat16)
    weights, plain = torch.zeros(e, n, k // 2, dtype=torch.uint8), torch.zeros(e, n, k // _BLOCK, dtype=torch.uint8)
    scales = tiles(noting(told.setdefault("scale tiles, FlashInfer", [])), plain)
    noting(told.setdefault("MXFP8, FlashInfer", [])).mxfp8_quantize(x, is_sf_swizzled_layout=True)
    noted = noting(told.setdefault("linear, FlashInfer", []))
    linear(noted, x, weights[0], scales[0], torch.ones(1), 1.0)
    starts = [sum(request.sizes[:i]) for i in range(e)]
    rows = sum(request.sizes)
    a = Groups(
        torch.zeros(rows, k // 2, dtype=torch.uint8),
        torch.zeros(rows, k // _BLOCK, dtype=torch.uint8),
        starts,
        list(request.sizes),
        torch.ones(e),
    )
    out = torch.empty(rows, n, dtype=torch.bfloat16)
    name = "groups, FlashInfer" if request.capability[0] == 12 else "batched groups, FlashInfer CuTe DSL"
    grouped = noting(told.setdefault(name, []))._replace(block_scale_interleave=silent.block_scale_interleave)
    (groupwise if request.capability[0] == 12 else batched)(grouped, a, weights, scales, out)
    return told


def _nvfp4(x: torch.Tensor, divisor: torch.Tensor, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns = _ceil(len(x), _TILE), _ceil(x.shape[1] // _BLOCK, 4)
    return torch.empty(len(x), x.shape[1] // 2, dtype=torch.uint8), torch.empty(rows, columns, dtype=torch.uint8)


def _mxfp8(x: torch.Tensor, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
    scales = torch.empty(_ceil(len(x), _TILE) * _ceil(x.shape[1] // 32, 4), dtype=torch.uint8)
    return torch.empty(x.shape, dtype=torch.float8_e4m3fn), scales


def _mxfp4(x: torch.Tensor, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(len(x), x.shape[1] // 2, dtype=torch.uint8), _mxfp8(x)[1]


def _tiled(scales: torch.Tensor) -> torch.Tensor:
    *experts, rows, columns = scales.shape
    return torch.zeros(*experts, _ceil(rows, _TILE), _ceil(columns, 4), dtype=torch.uint8).flatten()


def _product(*given: torch.Tensor, out: torch.Tensor, **named: Any) -> torch.Tensor:
    return out


def _nothing(*given: Any, **named: Any) -> None:
    del given, named
