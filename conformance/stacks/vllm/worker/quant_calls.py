"""What vLLM's own NVFP4 code hands to its kernels on a pretended capability: linear layers, and MoE. Nothing runs."""

import contextlib
import importlib
import inspect
from types import SimpleNamespace
from unittest import mock

from .problems import Missing, Unsupported, refusals, stacks_words

_LINEAR = "vllm.model_executor.kernels.linear.nvfp4"
_EXPERTS = "vllm.model_executor.layers.fused_moe.experts"
_MODULES = (
    f"{_LINEAR}.cutlass",
    f"{_LINEAR}.flashinfer",
    f"{_EXPERTS}.cutlass_moe",
    f"{_EXPERTS}.flashinfer_cutedsl_batched_moe",
)


def quant_calls(capability, tokens, n, k, sizes, intermediate, slots):
    """{what for: [(function, {argument: [dtype, shape, contiguous]}, {argument: text}, refused)]}."""
    from .fake_platform import pretend

    if capability[0] not in (10, 12):
        raise Unsupported(f"vLLM multiplies NVFP4 on 10.x and 12.x; {capability[0]}.{capability[1]} is neither")
    for name in _MODULES:  # while there is no device: as a pretended CUDA they would ask the compiled library
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise Unsupported(f"this vLLM has no {name}: {stacks_words(error)}; 0.33.0 has") from error
    given = SimpleNamespace(
        tokens=tokens, n=n, k=k, sizes=list(sizes), experts=len(sizes), inner=intermediate, slots=slots
    )
    told: dict[str, list] = {}
    ways = {"linear, vLLM": _linear, "linear, vLLM through FlashInfer": _through_flashinfer, "MoE, vLLM": _moe}
    if capability[0] == 10:
        ways["batched MoE, vLLM through FlashInfer CuTe DSL"] = _batched_moe
    with pretend(capability), _no_device():
        for name, way in ways.items():
            with refusals(name):
                way(given, told.setdefault(name, []))
    return told


@contextlib.contextmanager
def _no_device():
    """`Tensor.cuda` leaves tensors where they are."""
    import torch

    with mock.patch.object(torch.Tensor, "cuda", lambda self, *_, **__: self):
        yield


def _layer(given):
    """As vLLM's quantisation configurations leave a layer before its kernel converts it."""
    import torch

    layer = torch.nn.Module()
    layer.weight = _parameter(torch.zeros(given.n, given.k // 2, dtype=torch.uint8))
    layer.weight_scale = _parameter(torch.zeros(given.n, given.k // 16, dtype=torch.uint8).view(torch.float8_e4m3fn))
    for name in ("weight_global_scale", "input_global_scale", "input_global_scale_inv", "alpha"):
        setattr(layer, name, _parameter(torch.ones(())))
    layer.output_size_per_partition, layer.input_size_per_partition = given.n, given.k
    return layer


def _parameter(data):
    import torch

    return torch.nn.Parameter(data, requires_grad=False)


def _applied(kind, given):
    """The kernel's own conversion, then its own call."""
    import torch

    layer = _layer(given)
    kernel = object.__new__(kind)  # its constructor asks the device
    kernel.process_weights_after_loading(layer)
    got = kernel.apply_weights(layer, torch.zeros(given.tokens, given.k, dtype=torch.bfloat16))
    assert tuple(got.shape) == (given.tokens, given.n), f"the layer's result is {list(got.shape)}"


def _linear(given, calls):
    """CutlassNvFp4LinearKernel."""
    module = importlib.import_module(_MODULES[0])
    with _noted(module, calls, scaled_fp4_quant=_quantised, cutlass_scaled_fp4_mm=_multiplied):
        _applied(module.CutlassNvFp4LinearKernel, given)


def _through_flashinfer(given, calls):
    """FlashInferCutlassNvFp4LinearKernel; the operator in between is its Python function."""
    import vllm.utils.flashinfer as own

    module, flashinfer = importlib.import_module(_MODULES[1]), _flashinfer("flashinfer")
    operator = getattr(own, "flashinfer_mm_fp4", None)
    if operator is None:
        raise Missing("vLLM sees no FlashInfer beside it: pip install flashinfer-python")
    plain = mock.patch.object(own, "flashinfer_mm_fp4", getattr(operator, "_init_fn", operator))
    with _noted(module, calls, scaled_fp4_quant=_quantised), plain, _noted(flashinfer, calls, mm_fp4=_multiplied_t):
        _applied(module.FlashInferCutlassNvFp4LinearKernel, given)


def _flashinfer(name):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        words = f"{name} is not importable beside this vLLM: {stacks_words(error)}"
        raise Unsupported(f"{words}; pip install flashinfer-python there") from error


def _quantised(input, input_global_scale, is_sf_swizzled_layout=True, backend="none", padded_n=None):
    import torch

    columns = padded_n or input.shape[1]
    codes = torch.empty(len(input), columns // 2, dtype=torch.uint8)
    rows, blocks = -(-len(input) // 128) * 128, -(-columns // 64) * 4
    return codes, torch.empty(rows, blocks, dtype=torch.uint8).view(torch.float8_e4m3fn)


def _multiplied(a, b, block_scale_a, block_scale_b, alpha, out_dtype):
    import torch

    return torch.empty(len(a), len(b), dtype=out_dtype)


def _multiplied_t(a, b, a_descale, b_descale, alpha, out_dtype, **_):
    import torch

    return torch.empty(len(a), b.shape[1], dtype=out_dtype)


def _weights(given):
    """Of a MoE layer: codes and scales, in whole tiles, of [gate; up] and of down; global scales."""
    import torch

    e, k, inner = given.experts, given.k, given.inner

    def scales(rows, columns):
        return torch.zeros(e, -(-rows // 128) * 128, columns // 16, dtype=torch.uint8).view(torch.float8_e4m3fn)

    codes = [torch.zeros(e, 2 * inner, k // 2, dtype=torch.uint8), torch.zeros(e, k, inner // 2, dtype=torch.uint8)]
    return codes, [scales(2 * inner, k), scales(k, inner)], torch.ones(e)


def _moe(given, calls):
    """run_cutlass_moe_fp4."""
    import torch
    import vllm._custom_ops as ops
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation

    module = importlib.import_module(_MODULES[2])
    codes, scales, ones = _weights(given)
    x = torch.zeros(given.tokens, given.k, dtype=torch.bfloat16)
    ids = torch.zeros(given.tokens, given.slots, dtype=torch.int32)
    space = torch.empty(given.tokens * given.slots * max(2 * given.inner, given.k), dtype=torch.bfloat16)

    def of_experts(input_tensor, *_, **__):
        return _quantised(input_tensor, None)

    def activated(input_tensor, *_, **__):
        return _quantised(input_tensor[:, : input_tensor.shape[1] // 2], None)

    answers = {
        "get_cutlass_moe_mm_data": _nothing,
        "scaled_fp4_experts_quant": of_experts,
        "cutlass_fp4_moe_mm": _nothing,
        "silu_and_mul_scaled_fp4_experts_quant": activated,
    }
    with _noted(ops, calls, **answers), mock.patch.object(ops, "shuffle_rows", _shuffled):
        module.run_cutlass_moe_fp4(
            output=torch.empty_like(x),
            a=x,
            a1_gscale=ones,
            w1_fp4=codes[0],
            w1_blockscale=scales[0],
            w1_alphas=ones,
            a2_gscale=ones,
            w2_fp4=codes[1],
            w2_blockscale=scales[1],
            w2_alphas=ones,
            topk_weights=torch.ones(given.tokens, given.slots),
            topk_ids=ids,
            activation=MoEActivation.SILU,
            workspace13=space,
            workspace2=torch.empty_like(space),
            m=given.tokens,
            n=given.inner,
            k=given.k,
            e=given.experts,
            device=x.device,
        )


def _shuffled(rows, order):
    import torch

    return torch.zeros(len(order), rows.shape[1], dtype=rows.dtype)


def _batched_moe(given, calls):
    """flashinfer_cutedsl_moe_masked. Its weights' scales are given as they lie, and are not looked at."""
    import torch

    module = importlib.import_module(_MODULES[3])
    codes, scales, ones = _weights(given)
    e, rows = given.experts, max(given.sizes)

    def batched(a, mask, scale, **_):
        tiles = torch.empty(e, 1, -(-a.shape[2] // 64), 32, 4, 4, dtype=torch.uint8).view(torch.float8_e4m3fn)
        found = torch.empty(e, rows, a.shape[2] // 2, dtype=torch.uint8)
        return found.permute(1, 2, 0), tiles.permute(3, 4, 1, 5, 2, 0)

    def activated(a, mask, scale, **_):
        return batched(a[..., : a.shape[2] // 2], mask, scale)

    real = {
        "scaled_fp4_grouped_quantize": (_flashinfer("flashinfer").scaled_fp4_grouped_quantize, batched),
        "silu_and_mul_scaled_nvfp4_experts_quantize": (
            _flashinfer("flashinfer").silu_and_mul_scaled_nvfp4_experts_quantize,
            activated,
        ),
        "flashinfer_cutedsl_grouped_gemm_nt_masked": (
            _flashinfer("flashinfer.cute_dsl.blockscaled_gemm").grouped_gemm_nt_masked,
            _nothing,
        ),
    }
    with contextlib.ExitStack() as stack:
        for name, (function, answer) in real.items():
            stack.enter_context(mock.patch.object(module, name, _noting(function, answer, calls)))
        module.flashinfer_cutedsl_moe_masked(
            torch.zeros(e, rows, given.k, dtype=torch.bfloat16),
            ones,
            codes[0],
            scales[0],
            ones,
            codes[1],
            ones,
            scales[1],
            ones,
            torch.zeros(e, dtype=torch.int32),
            torch.empty(e, rows, 2 * given.inner, dtype=torch.bfloat16),
            torch.empty(e, rows, given.k, dtype=torch.bfloat16),
        )


def _nothing(*_, **__):
    return None


@contextlib.contextmanager
def _noted(module, calls, **answers):
    """The module's functions of those names, bound to their own signatures and noted down."""
    with contextlib.ExitStack() as stack:
        for name, answer in answers.items():
            noting = _noting(getattr(module, name), answer, calls)
            stack.enter_context(mock.patch.object(module, name, noting))
        yield


def _noting(function, answer, calls):
    signature, name = inspect.signature(function), function.__name__

    def call(*positional, **named):
        try:
            bound = signature.bind(*positional, **named)
        except TypeError as error:
            calls.append((name, {}, {}, str(error)))
            return answer(*positional, **named)
        tensors, values = {}, {}
        for argument, value in _flat(signature, bound.arguments):
            if hasattr(value, "untyped_storage"):
                dtype = str(value.dtype).removeprefix("torch.")
                tensors[argument] = [dtype, list(value.shape), value.is_contiguous()]
            else:
                values[argument] = str(value).removeprefix("torch.")[:80]
        calls.append((name, tensors, values, ""))
        return answer(*positional, **named)

    return call


def _flat(signature, arguments):
    for name, value in arguments.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            yield from value.items()
        elif isinstance(value, (list, tuple)) and value and hasattr(value[0], "untyped_storage"):
            yield from ((f"{name}[{index}]", one) for index, one in enumerate(value))
        else:
            yield name, value
