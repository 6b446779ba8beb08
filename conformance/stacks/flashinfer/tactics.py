"""The tactics that FlashInfer's runner has for two GEMM shapes, numbered for the harness."""

from __future__ import annotations

from typing import Any, Literal

import torch

#: CUDA capability -> the name of the generator of its module; the major version alone where a family shares one.
_MODULES = {(9, 0): "sm90", (10, 0): "sm100", (10, 3): "sm103", (12, 0): "sm120", (12, 1): "sm120"}


class Tactics:
    """GEMM shapes are (n, k) in elements. Numbers 0.. walk GEMM1's valid tactics, then GEMM2's, each with the other's
    first one: so every tactic is met once, and any of them can be pinned."""

    def __init__(
        self, capability: tuple[int, int], scheme: Literal["bf16", "mxfp8"], n1: int, k1: int, n2: int, k2: int
    ):
        from flashinfer.fused_moe import core

        module = getattr(core, f"gen_cutlass_fused_moe_{_MODULES[capability]}_module")().build_and_load()
        # x, weights, output; DeepSeek FP8 no, W4 groups, MXFP8, packed no, fused finalize, Humming no
        if scheme == "bf16":
            runner = module.init(torch.bfloat16, torch.uint8, torch.bfloat16, False, True, False, False, True, False)
        else:
            kinds = (torch.float8_e4m3fn, torch.int64, torch.bfloat16)
            runner = module.init(*kinds, False, False, True, False, False, False)
        self._first = self._valid(runner, 1, n1, k1, 0, int(runner.get_gemm1_tactic_count()))
        begin = int(runner.get_gemm1_tactic_count())
        self._second = self._valid(runner, 2, n2, k2, begin, begin + int(runner.get_gemm2_tactic_count()))

    @staticmethod
    def _valid(runner: Any, stage: int, n: int, k: int, first: int, last: int) -> list[int]:
        try:
            return sorted(int(t) for t in runner.get_valid_tactics_for_shape(stage, n, k))
        except AttributeError:  # an older runner does not say: all of the stage's
            return list(range(first, last))

    def __len__(self) -> int:
        return len(self._first) + len(self._second)

    def pair(self, number: int | None) -> tuple[int, int]:
        """(GEMM1's, GEMM2's) profile ids; None: the first of each."""
        if number is None:
            return self._first[0], self._second[0]
        if number < len(self._first):
            return self._first[number], self._second[0]
        return self._first[0], self._second[number - len(self._first)]
