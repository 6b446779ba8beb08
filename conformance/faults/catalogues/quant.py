"""Faults of quantisers, layouts and kernels of quantized formats."""

from __future__ import annotations

from conformance.faults import (
    quant_calls,
    quant_catalogue,
)
from conformance.faults.fault import Fault

FAULTS: tuple[Fault, ...] = (
    *(
        Fault(row.id, row.what, tuple(f"quant.{name}" for name in row.claims.split()), row.seen_in, quant=row.fault)
        for row in quant_catalogue.ROWS
    ),
    *(
        Fault(f"quant-call-{name}", what, ("quant.call.sm100", "quant.call.sm120"), seen_in, quant_call=fault)
        for name, what, seen_in, fault in (
            ("renamed", "the call has an argument that the library does not know", "", quant_calls.renamed),
            (
                "scales-unpadded",
                "scales of the weights have as many rows as the weights, no whole tiles",
                "vLLM #55643",
                quant_calls.scales_unpadded,
            ),
            ("scales-linear", "activations' scales are asked for as rows and blocks", "", quant_calls.scales_linear),
            ("alpha-bf16", "global scales go in as BF16", "", quant_calls.alpha_bf16),
            ("one-alpha", "one global scale for all experts", "NVFP4 contract, S3", quant_calls.one_alpha),
            ("starts-long", "starts and sizes of groups are int64", "", quant_calls.starts_long),
            (
                "scales-one-group",
                "scales of the activations are padded as one group",
                "NVFP4 contract, S5",
                quant_calls.scales_one_group,
            ),
            ("blocks-of-32", "half of the activations' scales", "", quant_calls.blocks_of_32),
            ("no-groups", "nothing is told of groups", "", quant_calls.no_groups),
        )
    ),
)
