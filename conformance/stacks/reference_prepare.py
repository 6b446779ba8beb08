"""The reference stack's preparation: a block-scaled kernel's layout, made by cutting and stacking. Nothing here is of
`references/`, which computes places instead."""

from __future__ import annotations

import torch

from conformance.errors import NotSupported
from conformance.stacks.prepare_protocol import Form, Prepared, PrepareInfo, PrepareRequest
from conformance.stacks.protocols import ParameterInfo


class ReferencePreparation:
    """`steps`: what the emulated kernel rounds the intermediate and the hidden size up to."""

    def __init__(self, scheme: str, steps: tuple[int, int]):
        self._scheme, self._steps = scheme, steps

    def open(self, request: PrepareRequest) -> ReferencePrepared:
        if self._scheme != "mxfp8":
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
            if name.endswith("_scale"):
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
