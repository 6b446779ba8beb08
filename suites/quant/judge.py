"""Holds NVFP4's bytes to the reference, by the rules that a library declares."""

from __future__ import annotations

from typing import Any

import torch

from conformance.stacks.quant_protocol import Nvfp4Rules, Quantized
from references import codes, nvfp4
from suites.quant.bench import unpacked
from suites.quant.exact import Exact

_E = nvfp4.EPSILON


def scale_rules(rules: Nvfp4Rules) -> dict[str, Any]:
    """As `references.nvfp4` takes them."""
    return {
        "up": rules.scale_round == "up",
        "floor": rules.scale_floor,
        "underflow": rules.scale_underflow,
        "zero": rules.zero_scale,
    }


class Judge:
    """Holds one quantised matrix to the reference by the library's declared rules."""

    def __init__(self, exact: Exact, rules: Nvfp4Rules, ties: str = "even"):
        self.exact, self.rules, self.ties = exact, scale_rules(rules), ties

    def interval(self, what: str, x: torch.Tensor, q: Quantized) -> None:
        """Scale bytes within rounding errors of the quotient; codes likewise, given the bytes as stored."""
        quotient = nvfp4.scale_quotients(x, q.global_scale)
        low, high = (nvfp4.scale_bytes(quotient * (1 + e), **self.rules) for e in (-_E, _E))
        self.exact.inside(f"{what}: scale byte", q.scales, low, high)
        self.codes(what, x, q)

    def codes(self, what: str, x: torch.Tensor, q: Quantized) -> None:
        if not self.fit(what, x, q):
            return
        got = unpacked("nvfp4", q)
        low, high = (nvfp4.element_codes(x, q.scales, q.global_scale, self.ties, 1 + e) for e in (-_E, _E))
        self.exact.inside(f"{what}: magnitude", got & 7, low & 7, high & 7)
        self.exact.same(f"{what}: sign", got >> 3, low >> 3, but=(got & 7) == 0)

    def fit(self, what: str, x: torch.Tensor, q: Quantized) -> bool:
        rows, columns = x.shape
        fits = q.codes.shape == (rows, columns // 2) and q.scales.shape == (rows, columns // nvfp4.BLOCK)
        if not fits:
            got = f"codes {tuple(q.codes.shape)}, scales {tuple(q.scales.shape)}"
            self.exact.true(f"shape of {what}", False, f"{tuple(x.shape)} quantised", got)
        return fits

    def equal(self, what: str, x: torch.Tensor, q: Quantized) -> None:
        if not self.fit(what, x, q):
            return
        want = nvfp4.quantize(x, q.global_scale, **self.rules, ties=self.ties)
        self.exact.same(f"{what}: scale byte", q.scales, want.scales)
        got = unpacked("nvfp4", q)
        self.exact.same(f"{what}: code", got, want.codes, but=(got | want.codes) & 7 == 0)

    def near(self, what: str, x: torch.Tensor, radius: torch.Tensor, q: Quantized) -> None:
        """As `interval`, of values that are known within a radius."""
        if not self.fit(what, x, q):
            return
        size = x.abs()
        low, high = (
            nvfp4.scale_bytes(nvfp4.scale_quotients(most, q.global_scale) * (1 + e), **self.rules)
            for most, e in (((size - radius).clamp(min=0), -_E), (size + radius, _E))
        )
        self.exact.inside(f"{what}: scale byte", q.scales, low, high)
        ends = [
            codes.decode_e2m1(nvfp4.element_codes(end, q.scales, q.global_scale, self.ties, 1 + e))
            for end in (x - radius, x + radius)
            for e in (-_E, _E)
        ]
        got = codes.decode_e2m1(unpacked("nvfp4", q))
        self.exact.inside(f"{what}: element", got, torch.stack(ends).amin(0), torch.stack(ends).amax(0))
