"""The reference stack's preparation: a kernel's layout, made by cutting, stacking and shifting. Nothing here is of
`references/`, which computes places instead."""

from __future__ import annotations

import torch

from conformance.errors import NotSupported
from conformance.stacks.prepare_protocol import Form, Prepared, PrepareInfo, PrepareRequest
from conformance.stacks.protocols import ParameterInfo

#: SM90's words of four bytes: (first bit, how many, where to) of what moves together, of the low nibbles; those of the
#: high nibbles begin 4 bits later and end up 16 later.
_MOVES = (
    *((0, 3, 6), (3, 1, 15)),
    *((8, 3, 3), (11, 1, 12)),
    *((16, 3, 0), (19, 1, 9)),
    *((24, 1, 13), (25, 2, 10), (27, 1, 14)),
)
_SCHEMES = ("mxfp8", "bf16")


class ReferencePreparation:
    """`steps`: what the emulated kernel rounds the intermediate and the hidden size up to."""

    def __init__(self, scheme: str, steps: tuple[int, int]):
        self._scheme, self._steps = scheme, steps

    def open(self, request: PrepareRequest) -> ReferencePrepared:
        if self._scheme not in _SCHEMES:
            raise NotSupported(f"the reference stack emulates no layout of weights for {self._scheme} x MXFP4")
        return ReferencePrepared(request, self._scheme, self._steps)


class ReferencePrepared:
    def __init__(self, request: PrepareRequest, scheme: str, steps: tuple[int, int]):
        self._request = request
        self._width, self._hidden = (
            next(n for n in range(size, size + step) if n % step == 0)
            for size, step in zip((request.share, request.geometry.hidden_size), steps, strict=True)
        )
        k, h = self._width, self._hidden
        self.info = PrepareInfo(
            kernel=f"{request.backend}, {scheme} x MXFP4",
            scheme=scheme,
            loaded={
                "w13_weight": ParameterInfo(2 * k, h // 2, "uint8"),
                "w13_weight_scale": ParameterInfo(2 * k, h // 32, "uint8"),
                "w2_weight": ParameterInfo(h, k // 2, "uint8"),
                "w2_weight_scale": ParameterInfo(h, k // 32, "uint8"),
            },
            helpers="the reference stack's own",
        )

    def convert(self, loaded: dict[str, torch.Tensor]) -> dict[str, Prepared]:
        done = {}
        for name, data in loaded.items():
            if name.startswith("w13"):
                gate, up = data.split(data.shape[1] // 2, dim=1)
                data = torch.hstack((up, gate))
            if self.info.scheme == "bf16":
                data = _folded(data) if name.endswith("_scale") else _mixed(data)
            elif name.endswith("_scale"):
                data = torch.stack([_tiled(expert) for expert in data])
            done[name] = Prepared(data.flatten(1), Form(tuple(data.shape), "uint8"))
        return done

    def close(self) -> None:
        pass


def _tiled(scales: torch.Tensor) -> torch.Tensor:
    """(rows, groups) -> the same shape: blocks of 128 x 4, each as four quarters of 32 rows side by side."""
    blocks = [
        torch.hstack(block.split(32))
        for strip in scales.split(128)
        for block in strip.split(4, dim=1)
        if block.shape == (128, 4)
    ]
    laid = torch.cat([block.flatten() for block in blocks])
    if laid.numel() != scales.numel():
        raise NotSupported(f"scales {tuple(scales.shape)} make no whole blocks of 128 x 4")
    return laid.view(scales.shape)


def _folded(scales: torch.Tensor) -> torch.Tensor:
    """SM90's (experts, rows, groups): blocks of 64 x 4, each as four quarters of 16 rows side by side."""
    rows, groups = scales.shape[1:]
    if rows % 64 or groups % 4:
        raise NotSupported(f"scales ({rows}, {groups}) make no whole blocks of 64 x 4")
    blocks = scales.unflatten(2, (-1, 4)).unflatten(1, (-1, 4, 16))  # expert, strip, quarter, row, block, group
    return blocks.permute(0, 1, 4, 3, 2, 5).flatten(4)


def _mixed(weights: torch.Tensor) -> torch.Tensor:
    """SM90's (experts, rows, bytes) -> the same shape: in blocks of 16 x 32, upper and lower rows exchange bytes, and
    bits move within each four bytes."""
    if weights.shape[1] % 16 or weights.shape[2] % 32:
        raise NotSupported(f"weights {tuple(weights.shape[1:])} make no whole blocks of 16 x 32 bytes")
    # expert, strip, row half, row | block, byte halves: of 32, of 16, of 8, of 4
    cut = weights.unflatten(2, (-1, 2, 2, 2, 4)).unflatten(1, (-1, 2, 8))
    laid = cut.permute(0, 1, 6, 3, 4, 5, 8, 7, 2)
    return _moved(laid.reshape(weights.shape).view(torch.int32)).view(torch.uint8)


def _moved(words: torch.Tensor) -> torch.Tensor:
    made = torch.zeros_like(words)
    for first, many, to in _MOVES:
        mask = (1 << many) - 1
        for more_first, more_to in ((0, 0), (4, 16)):
            made |= ((words >> (first + more_first)) & mask) << (to + more_to)
    return made
