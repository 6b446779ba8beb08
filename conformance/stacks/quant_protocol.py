"""Layer `quant`: number formats, block quantisers, layouts, and the GEMMs that read them.

A stack offers `quantizer()`, `gemm()` and `linear()`, each if it has one. A library has one file to write: what its
`capabilities()` does not offer is not supported, never passed; what they declare, it is held to.

Words: a *code* is one element's bits in a uint8; *packed* is two E2M1 codes a byte, the even element in the low
nibble, pairs along K. A *scale* is the byte of a block of elements along K: E4M3 for `nvfp4` (block 16), E8M0 for
`mxfp4` and `mxfp8` (block 32). A *global scale* multiplies: value = code * scale * global scale (ModelOpt's
`weight_scale_2`, amax / 2688); a library that divides by it (FlashInfer's, compressed-tensors') is handed the
reciprocal by its adapter.

How a grouped GEMM plugs in: see `GroupedGemm`. Layouts stay private: `prepare` is given plain codes and plain scales
and may keep whatever it makes of them, `run` is given plain activations and scales.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import msgspec

if TYPE_CHECKING:
    import torch

Format = Literal["nvfp4", "mxfp4", "mxfp8"]
#: Elements along K that share a scale.
BLOCK: dict[str, int] = {"nvfp4": 16, "mxfp4": 32, "mxfp8": 32}


class CodeRules(msgspec.Struct, frozen=True):
    """What single numbers become.

    `e2m1_ties`: `even`, or `first` (the first of the nearest in a table, by distances in float32: ties go towards
    zero, and what is too large for its distances to differ, Inf too, becomes zero), or `away`. `e2m1_negative_zero`:
    is a negative that rounds to zero code 8 (`kept`), 0 (`dropped`), or not looked at (`either`). `e2m1_nan`: the
    code of a NaN; None: not declared, and not looked at. `e4m3_overflow`: beyond 448 (Inf too) `saturate`, or `nan`
    once the value would round beyond it. `e8m0_zero`, `e8m0_nan`: what scale bytes 0x00 and 0xFF decode to.
    """

    e2m1_ties: Literal["even", "first", "away"] = "even"
    e2m1_negative_zero: Literal["kept", "dropped", "either"] = "kept"
    e2m1_nan: int | None = None
    e4m3_overflow: Literal["saturate", "nan"] = "saturate"
    e8m0_zero: Literal["2^-127", "0"] = "2^-127"
    e8m0_nan: Literal["nan", "inf", "2^128"] = "nan"


class Nvfp4Rules(msgspec.Struct, frozen=True):
    """scale = E4M3(amax / 6 / global scale), elements divided by the scale *as rounded*.

    `scale_round`: `even`, or `up` (cuDNN). `scale_floor`: the smallest byte that a block with a non-zero element gets
    (0: a scale that rounds to zero is zero, and all of its codes are). `scale_underflow`: the byte of a block with a
    non-zero element whose scale rounds to zero. `zero_scale`: the byte of a block of zeros.
    """

    scale_round: Literal["even", "up"] = "even"
    scale_floor: int = 0
    scale_underflow: int = 0
    zero_scale: int = 0


class MxRules(msgspec.Struct, frozen=True):
    """The power of two of a block, from amax and the largest element (6, 448), whose power of two is (4, 256):

    `floor`  2^floor(log2 amax) / (4, 256): OCP MX v1.0, 6.3; elements may saturate
    `even`   the same after amax is rounded to the element's own mantissa
    `ceil`   2^ceil(log2 amax) / (4, 256)
    `rceil`  the smallest power of two that is not below amax / (6, 448): nothing saturates
    `trunc`  the largest power of two that is not above amax / (6, 448): up to half of every block is lost (vLLM #43557)

    `zero_scale`: the byte of a block of zeros (None: not looked at). `zero_byte`: elements under a scale byte 0 are
    `kept`, or become `zero`.
    """

    scale: Literal["floor", "even", "ceil", "rceil", "trunc"] = "floor"
    zero_scale: int | None = 0
    zero_byte: Literal["kept", "zero"] = "kept"


class QuantCapabilities(msgspec.Struct, frozen=True):
    """`offers`: what there is, of e2m1.encode, e2m1.decode, e4m3.encode, e4m3.decode, e8m0.decode, pack, unpack,
    FORMAT.quantize, FORMAT.dequantize, nvfp4.own_global (a global scale of its own), nvfp4.weight, swizzle,
    unswizzle, groups, experts, interleave, deinterleave, k_major.

    `device`: where tensors live; `runs`: what runs there, in words (the function's own name). `inputs`: float types
    that `quantize` takes. `views`: are rows of a larger matrix taken where they lie? `granularities`: of gate/up
    interleaving, in rows. `weight_global`: of quantised weights, one a matrix, or one each for its gate and up half.
    """

    offers: frozenset[str]
    runs: str
    device: str = "cpu"
    inputs: tuple[str, ...] = ("bfloat16", "float32")
    codes: CodeRules = CodeRules()
    nvfp4: Nvfp4Rules = Nvfp4Rules()
    mxfp4: MxRules = MxRules()
    mxfp8: MxRules = MxRules()
    views: Literal["taken", "refused"] = "taken"
    granularities: tuple[int, ...] = (8, 16, 32)
    weight_global: Literal["matrix", "half"] = "matrix"
    notes: tuple[str, ...] = ()


class Quantized(NamedTuple):
    """One matrix (M, K). `codes`: uint8, (M, K / 2) packed, or (M, K) E4M3 for `mxfp8`. `scales`: uint8 (M, K /
    block) as rows and blocks, whatever the memory; a library that only gives them swizzled gives its flat buffer and
    says so."""

    codes: torch.Tensor
    scales: torch.Tensor
    global_scale: float = 1.0
    layout: Literal["linear", "128x4"] = "linear"


class QuantizedWeight(NamedTuple):
    """Matrices (E, N, K), K last and contiguous: `codes` uint8 (E, N, K / 2), `scales` uint8 (E, N, K / block),
    `global_scales` float32 (E,), or (E, 2) for the gate and up halves of N."""

    codes: torch.Tensor
    scales: torch.Tensor
    global_scales: torch.Tensor


class Quantizer(Protocol):
    """Each method is only called where `offers` names it. Inputs may be strided views; none may be changed.

    May raise StackRefused (the library's own validation), NotSupported, AdapterError, StackCrashed.
    """

    def capabilities(self) -> QuantCapabilities: ...

    def encode(self, code: Literal["e2m1", "e4m3"], x: torch.Tensor) -> torch.Tensor:
        """x (n,) float32 -> codes (n,) uint8, one a byte."""

    def decode(self, code: Literal["e2m1", "e4m3", "e8m0"], codes: torch.Tensor) -> torch.Tensor:
        """codes (n,) uint8 -> float32 (n,)."""

    def pack(self, codes: torch.Tensor) -> torch.Tensor:
        """(M, K) -> (M, K / 2)."""

    def unpack(self, packed: torch.Tensor) -> torch.Tensor: ...

    def quantize(self, format: Format, x: torch.Tensor, global_scale: float | None = None) -> Quantized:
        """x (M, K). `global_scale` is `nvfp4`'s; None: the quantiser's own of this x, amax / 2688, if it offers
        one."""

    def dequantize(self, format: Format, q: Quantized) -> torch.Tensor:
        """-> float32 (M, K)."""

    def quantize_weight(self, format: Format, w: torch.Tensor) -> QuantizedWeight:
        """w (E, N, K): each matrix on its own, blocks along K."""

    def swizzle(self, scales: torch.Tensor) -> torch.Tensor:
        """(R, C) -> flat, tiles of 128 x 4, padded with zeros: cuBLAS, `1D block scaling factors layout`."""

    def unswizzle(self, flat: torch.Tensor, rows: int, columns: int) -> torch.Tensor: ...

    def groups(self, scales: list[torch.Tensor]) -> tuple[torch.Tensor, list[int]]:
        """Scales (m_i, C) of each group -> one flat buffer, each group padded to whole tiles on its own, and where
        each one starts in it, in bytes."""

    def experts(self, scales: torch.Tensor) -> torch.Tensor:
        """(E, N, C) -> (E, bytes): each expert swizzled on its own."""

    def interleave(
        self, codes: torch.Tensor, scales: torch.Tensor, granularity: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[gate; up] (E, 2 I, bytes) -> `granularity` rows of gate, as many of up, and so on: codes and scales
        alike."""

    def deinterleave(self, h: torch.Tensor, granularity: int) -> torch.Tensor:
        """The inverse, on the columns of a result (M, 2 I)."""

    def k_major(self, codes: torch.Tensor) -> torch.Tensor:
        """(E, N, K / 2) -> seen as (E, K / 2, N), with K / 2 still the contiguous axis."""


class GemmCapabilities(msgspec.Struct, frozen=True):
    """What a GEMM declares of itself.

    `activations`: `bf16`, or the format that they arrive quantised in. `alignment`: each group begins at a row that
    is a multiple of it (1: groups lie one after the other); the rows between are of nobody. `beyond`: what becomes of
    rows of `out` that are of nobody: left as they are, set to zero, or anything at all. `accumulation`: relative to
    the sum of |a b|, how far sums may be off: 2^-20 for FP32. `steps`: N and K are multiples of these. `tokens`: the
    most rows in one call. `experts`: the most.
    """

    weights: Format
    activations: Literal["bf16", "nvfp4", "mxfp4", "mxfp8"]
    runs: str
    output: Literal["bfloat16", "float32"] = "bfloat16"
    device: str = "cpu"
    alignment: int = 1
    beyond: Literal["untouched", "zero", "anything"] = "untouched"
    accumulation: float = 2.0**-20
    steps: tuple[int, int] = (8, 32)
    tokens: int = 4096
    experts: int = 64
    #: Formats whose global scale is (E,): of each weight; and (E,): of each group's activations.
    notes: tuple[str, ...] = ()


class Activations(NamedTuple):
    """What `run` is given, on the kernel's device. Quantised: `x` holds codes (M, K / 2) or E4M3 (M, K), `scales` (M,
    K / block) plain, `global_scales` float32 (E,), one a group. `bf16`: `x` (M, K) bfloat16, and no scales."""

    x: torch.Tensor
    scales: torch.Tensor | None = None
    global_scales: torch.Tensor | None = None


class GroupedGemm(Protocol):
    """out[o_e + i] = activations[o_e + i] @ weights[e]^T, for the rows i of group e.

    value = code * scale * global scale on both sides; sums in FP32; one rounding to the output type.
    """

    def capabilities(self) -> GemmCapabilities: ...

    def prepare(self, weights: QuantizedWeight) -> Any:
        """A handle. The tensors given are overwritten once this returns: whatever is needed later must be kept."""

    def run(self, handle: Any, a: Activations, offsets: torch.Tensor, sizes: torch.Tensor, out: torch.Tensor) -> None:
        """`offsets` (E,), `sizes` (E,): int32, where each group's rows begin and how many they are, some of them 0.
        `out` (M, N) of the output type comes poisoned with NaN."""

    def close(self, handle: Any) -> None: ...


class LinearCapabilities(msgspec.Struct, frozen=True):
    """A linear layer that quantises its own input: y = x W^T + bias. `quantises`: into what, by `rules` (None: not at
    all). `static`: may an input's global scale be given? `dynamic`: does it follow from each input where none is?"""

    weights: Format
    quantises: Format | None
    runs: str
    device: str = "cpu"
    rules: Nvfp4Rules = Nvfp4Rules()
    output: Literal["bfloat16", "float32"] = "bfloat16"
    static: bool = True
    dynamic: bool = True
    accumulation: float = 2.0**-20
    steps: tuple[int, int] = (8, 32)
    notes: tuple[str, ...] = ()


class QuantLinear(Protocol):
    def capabilities(self) -> LinearCapabilities: ...

    def prepare(
        self,
        weights: QuantizedWeight,
        split: int | None = None,
        bias: torch.Tensor | None = None,
        input_scale: float | None = None,
    ) -> Any:
        """One matrix (E = 1). `split`: rows [0, split) have the first of two global scales (1, 2), the others the
        second. Raises StackRefused for an input scale that is 0, negative, Inf or NaN."""

    def run(self, handle: Any, x: torch.Tensor) -> torch.Tensor:
        """x (..., K) bfloat16 -> (..., N)."""

    def close(self, handle: Any) -> None: ...


class SwigluCapabilities(GemmCapabilities, frozen=True):
    """A grouped GEMM that ends in SwiGLU. `rounding`: gate and up go into SiLU as the sums in float32 (`once`: only
    the result is rounded), or rounded to BF16 first (`bf16_h`). `halves`: do gate and up have global scales of their
    own?"""

    rounding: Literal["once", "bf16_h"] = "once"
    halves: bool = True
    #: What becomes of a NaN: a clamp may swallow it.
    nan: Literal["visible", "swallowed"] = "visible"
    #: Does `run_quantized` give the result in NVFP4, by `rules`, from the float32 product or from its BF16?
    quantises: Literal["", "float32", "bfloat16"] = ""
    rules: Nvfp4Rules = Nvfp4Rules()


class FusedSwiglu(Protocol):
    """out = SwiGLU(gate, up), gate and up the two halves of activations @ weights[e]^T, global scales included: SiLU
    is not linear. The limit clamps gate from above and up on both sides, before SiLU."""

    def capabilities(self) -> SwigluCapabilities: ...

    def prepare(self, weights: QuantizedWeight) -> Any:
        """Weights (E, 2 I, K), [gate; up]; interleaving them is the kernel's own affair. As `GroupedGemm.prepare`."""

    def run(
        self,
        handle: Any,
        a: Activations,
        offsets: torch.Tensor,
        sizes: torch.Tensor,
        limit: float | None,
        out: torch.Tensor,
    ) -> None:
        """As `GroupedGemm.run`; `out` is (M, I)."""

    def run_quantized(
        self,
        handle: Any,
        a: Activations,
        offsets: torch.Tensor,
        sizes: torch.Tensor,
        limit: float | None,
        global_scale: float,
    ) -> Quantized:
        """The result (M, I) in NVFP4 by that global scale; rows of nobody hold anything. Only where `quantises`."""

    def close(self, handle: Any) -> None: ...
