"""NVFP4 x NVFP4 in FlashInfer: CuTe DSL on SM100, CUTLASS on SM120. Calls are bound, and have run nowhere.

As vLLM 0.33.0 prepares them (`flashinfer_cutedsl_moe.py`, `flashinfer_cutlass_moe.py`, `flashinfer_fp4_moe.py`): halves
of W13 swapped to [up; gate], for CuTe DSL interleaved by 64 rows; block scales in tiles of 128 rows by 4; alphas are
the input's global scale times the weights'. MXFP4 weights are carried over: their codes are NVFP4's, and a power of two
for 32 elements is twice the same E4M3 scale.
"""

from __future__ import annotations

import torch

from conformance.errors import NotSupported, StackRefused
from conformance.stacks.flashinfer import library
from conformance.stacks.flashinfer.prepare import up_first
from conformance.stacks.protocols import MoeCall, MoeRequest

#: Powers of two that E4M3 has: 2^-9 to 2^8; its exponent's bias, and the bytes of the three below 2^-6.
_HIGHEST, _SPAN, _BIAS, _SUBNORMAL = 8, 17, 7, (1, 2, 4)
_INTERLEAVE = 64
_SWIGLU = 3  # ActivationType.Swiglu


def carried(scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """E8M0 per 32 (E, rows, n) -> E4M3 bytes per 16 (E, rows, 2 n), global scale (E,) float32; a byte of 0 stays 0.

    Raises StackRefused where an expert's scales span more than E4M3's powers of two, or one is NaN.
    """
    used = scales.int()
    highest = used.flatten(1).amax(1)
    down = highest[:, None, None] - used
    if bool(((used > 0) & (down > _SPAN)).any()) or bool((used == 255).any()):
        raise StackRefused(f"block scales that span more than 2^{_SPAN}, or are NaN, do not fit NVFP4")
    exponent = (_HIGHEST - down).clamp(min=-9)
    small = torch.tensor(_SUBNORMAL, device=scales.device)[(exponent + 9).clamp(0, 2)]
    byte = torch.where(exponent < 1 - _BIAS, small, (exponent + _BIAS) << 3)
    byte = torch.where(used == 0, 0, byte).to(torch.uint8)
    return byte.repeat_interleave(2, dim=2), torch.exp2((highest - 127 - _HIGHEST).float())


def calls(request: MoeRequest, capability: tuple[int, int], tokens: int, slots: int) -> list[MoeCall]:
    """What is called there, bound to the installed FlashInfer. Raises NotSupported below SM100."""
    if capability[0] not in (10, 12):
        raise NotSupported(f"FlashInfer multiplies NVFP4 on 10.x and 12.x; {capability[0]}.{capability[1]} is neither")
    import flashinfer
    from flashinfer import fused_moe

    noted: list[MoeCall] = []
    read = {name: request.weights.read(name, 0, request.experts) for name in _PARAMETERS}
    w13, w2 = up_first(read["w13_weight"]), read["w2_weight"]
    s13, g13 = carried(up_first(read["w13_weight_scale"]))
    s2, g2 = carried(read["w2_weight_scale"])
    of_x, of_h = request.global_scales
    hidden = w2.shape[1]
    x = torch.zeros(tokens, hidden, dtype=torch.bfloat16)
    out, ids = torch.empty_like(x), torch.zeros(tokens, slots, dtype=torch.int32)
    tiled = capability[0] == 12
    quantize = library.noted(flashinfer.fp4_quantize, _quantized, noted)
    codes, scales = quantize(x, torch.tensor([1 / of_x]), is_sf_swizzled_layout=tiled)
    routed = {"token_selected_experts": ids, "token_final_scales": torch.ones(tokens, slots)}
    alphas = g13 * of_x, g2 * of_h
    if tiled:
        library.noted(fused_moe.cutlass_fused_moe, _nothing, noted)(
            input=codes,
            input_sf=scales,
            fc1_expert_weights=w13.contiguous().view(torch.int64),
            fc2_expert_weights=w2.contiguous().view(torch.int64),
            output_dtype=torch.bfloat16,
            quant_scales=[
                torch.tensor(1 / of_x),
                _tiles(s13).view(torch.int32),
                alphas[0],
                torch.tensor(1 / of_h),
                _tiles(s2).view(torch.int32),
                alphas[1],
            ],
            output=out,
            tp_size=request.tp,
            tp_rank=request.rank,
            swiglu_limit=None if request.limit is None else torch.full((request.experts,), request.limit),
            use_fused_finalize=False,
            **routed,
        )
        return noted
    library.noted(flashinfer.cute_dsl_fused_moe_nvfp4, _nothing, noted)(
        x=codes,
        x_sf=scales.view(torch.float8_e4m3fn).unsqueeze(-1),
        w1_weight=_interleaved(w13),
        w1_weight_sf=_mma(_tiles(_interleaved(s13))),
        w1_alpha=alphas[0],
        fc2_input_scale=torch.full((1,), 1 / of_h),
        w2_weight=w2,
        w2_weight_sf=_mma(_tiles(s2)),
        w2_alpha=alphas[1],
        num_experts=request.experts,
        top_k=slots,
        use_fused_finalize=False,
        moe_output=out,
        activation_type=_SWIGLU,
        **({} if request.limit is None else {"swiglu_limit": request.limit}),
        **routed,
    )
    return noted


_PARAMETERS = ("w13_weight", "w13_weight_scale", "w2_weight", "w2_weight_scale")


def _interleaved(w13: torch.Tensor) -> torch.Tensor:
    """[up; gate] (E, 2K, n) -> 64 rows of up, 64 of gate, and so on."""
    halves = w13.unflatten(1, (2, -1, _INTERLEAVE))
    return halves.transpose(1, 2).reshape(w13.shape)


def _tiles(scales: torch.Tensor) -> torch.Tensor:
    """(E, rows, n), rows a multiple of 128 and n of 4, in tiles of 128 by 4; the shape stays."""
    e, rows, n = scales.shape
    tiles = scales.view(e, rows // 128, 4, 32, n // 4, 4).permute(0, 1, 4, 3, 2, 5)
    return tiles.reshape(scales.shape)


def _mma(tiled: torch.Tensor) -> torch.Tensor:
    """The view (32, 4, rows / 128, 4, n / 4, E) of it that CuTe DSL takes."""
    e, rows, n = tiled.shape
    return tiled.view(e, rows // 128, n // 4, 32, 4, 4).permute(3, 4, 1, 5, 2, 0)


def _quantized(
    x: torch.Tensor, global_scale: torch.Tensor, is_sf_swizzled_layout: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes, two a byte; scales (rows, n), in whole tiles if they are swizzled."""
    rows, n = x.shape[0], x.shape[1] // 16
    if is_sf_swizzled_layout:
        rows, n = -(-rows // 128) * 128, -(-n // 4) * 4
    return torch.empty(x.shape[0], x.shape[1] // 2, dtype=torch.uint8), torch.empty(rows, n, dtype=torch.uint8)


def _nothing(**named: object) -> None:
    del named
