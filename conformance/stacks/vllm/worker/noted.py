"""vLLM's compiled functions on the way of Marlin's MoE, replaced by what notes their arguments and runs nothing.

Each is bound by name to the signature of vLLM's own Python function for it (the activation has none: to its schema),
and answered with memory of the dtype and shape that the function gives.
"""

import contextlib
import importlib
import inspect
from unittest import mock

#: Streaming multiprocessors that are pretended: Marlin's workspace is sized by them.
_SMS = 132

#: Imported while there is no device: as a pretended CUDA they would ask the compiled library what it can do.
_MODULES = (
    "vllm.model_executor.layers.fused_moe.experts.marlin_moe",
    "vllm.model_executor.layers.quantization.mxfp4",
    "vllm.model_executor.layers.quantization.online.fp8",
    "vllm.model_executor.layers.quantization.utils.marlin_utils_fp4",
)


def import_all():
    for name in _MODULES:
        importlib.import_module(name)


@contextlib.contextmanager
def compiled():
    """Inside, a list that fills with (function, tensors, values): {argument: [dtype, shape, contiguous]}, {argument:
    text}."""
    import torch
    import vllm._custom_ops as ops
    from vllm.model_executor.layers.quantization.utils import marlin_utils
    from vllm.utils import torch_utils

    calls: list[tuple] = []

    def repacked(b_q_weight, size_k, size_n, num_bits, **rest):
        return torch.empty(size_k // 16, size_n * 16 * num_bits // 32, dtype=b_q_weight.dtype)

    def gemm(input, output, size_m, size_n, top_k, **rest):
        return torch.empty(size_m * top_k, size_n, dtype=input.dtype) if output is None else output

    def nothing(**rest):
        return None

    answers = {
        "gptq_marlin_repack": repacked,
        "moe_wna16_marlin_gemm": gemm,
        "moe_align_block_size": nothing,
        "moe_sum": nothing,
    }
    with contextlib.ExitStack() as stack:
        for name, answer in answers.items():
            function = getattr(ops, name)
            stack.enter_context(mock.patch.object(ops, name, _noting(name, function, answer, calls)))
        noting = _noting("silu_and_mul_with_clamp", _clamped, nothing, calls)
        stack.enter_context(mock.patch.object(torch.ops._C, "silu_and_mul_with_clamp", noting, create=True))
        machine = {"num_compute_units": lambda *ids: _SMS, "current_stream": lambda: "the pretended stream"}
        for module in (marlin_utils, torch_utils):
            for name in machine.keys() & vars(module):
                stack.enter_context(mock.patch.object(module, name, machine[name]))
        yield calls


def _clamped(output, input, clamp_limit, alpha=1.0, beta=0.0):
    """The compiled activation's own schema: vLLM calls it without a Python function of its own. Source: the schema that
    0.33.0's library registers."""


def _noting(name, function, answer, calls):
    signature = inspect.signature(function)

    def call(*positional, **given):
        bound = signature.bind(*positional, **given)
        bound.apply_defaults()
        tensors, values = {}, {}
        for argument, value in bound.arguments.items():
            if hasattr(value, "untyped_storage"):
                dtype = str(value.dtype).removeprefix("torch.")
                tensors[argument] = [dtype, list(value.shape), value.is_contiguous()]
            else:
                values[argument] = str(value)
        calls.append((name, tensors, values))
        return answer(**bound.arguments)

    return call
