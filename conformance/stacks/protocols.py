"""One small protocol a layer. A stack offers those it has; `capabilities()` says which, and how.

All byte tensors are `torch.uint8` and two-dimensional (rows, bytes): a checkpoint tensor of one expert,
or one expert's part of a loaded parameter, exactly as stored. FP8 and E8M0 codes travel as their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    import torch

    from conformance.geometry import Geometry
    from conformance.stacks.shared import FilePart

#: The routed-expert parameters, in vLLM's own names, and the checkpoint shards each one is loaded from.
SHARDS: dict[str, tuple[str, ...]] = {
    "w13_weight": ("w1", "w3"),
    "w13_weight_scale": ("w1", "w3"),
    "w2_weight": ("w2",),
    "w2_weight_scale": ("w2",),
}


#: A pair that virtual TP may use: CUDA capability, attention backend, MoE backend.
Vetted = tuple[tuple[int, int] | None, str, str]


class StackInfo(msgspec.Struct, omit_defaults=True):
    """Who is under test. `subject` is `reference` for ours: such a verdict judges the harness, not a machine."""

    name: str
    subject: str
    version: str
    python: str = ""
    #: What identifies the code: commit of a checkout, hashes of the files that decide plan and loading.
    identity: dict[str, str] = {}
    #: Backends that the stack's own oracle knows, by the name that `--backend` takes.
    backends: list[str] = []
    #: Layers and features it has (`plan`, `loader`, `virtual-tp`, ...), and what it lacks, in words.
    capabilities: list[str] = []
    notes: list[str] = []


class Axis(msgspec.Struct, frozen=True):
    """One planned axis, in elements of that axis: checkpoint size, padded global size, size of one rank."""

    original: int
    padded: int
    per_rank: int


class PlanRequest(msgspec.Struct, frozen=True):
    """What the stack is asked to plan. `capability` is the pretended CUDA capability, None for no CUDA."""

    geometry: Geometry
    tp: int
    capability: tuple[int, int] | None
    attention: str | None
    moe: str
    #: Go round the stack's own guard, to see the plan it would make.
    force: bool = False
    expert_parallel: bool = False
    #: With a draft (MTP) model of one token: the outcome is the pair's, `padding` and `axes` are the draft's.
    draft: bool = False


class PlanOutcome(msgspec.Struct):
    """What came of it.

    `accepted`: a configuration was built (and padded, if padding was needed). `refused`: the stack raised, and
    `message` is its own. `ignored`: no error, and yet no plan where padding was needed.
    `axes` holds heads, groups, routed, shared, vocab (those that the geometry has) and, under
    `unpadded`, the axes that must stay as they are. None where the stack made no plan.
    `origin` is `plan` (the stack's own plan), `layers` (read off the layers it built) or `draft`.
    `padding` is what the stack's padding layer itself did, whatever came of the whole configuration: `planned`,
    `refused` (its own guard raised), `nothing`; `no-layer` where the stack has none, `unknown-backend` where it was
    not reached because the stack has no backend of that name.
    """

    outcome: Literal["accepted", "refused", "ignored"]
    message: str = ""
    axes: dict[str, Axis] | None = None
    unpadded: dict[str, int] = {}
    origin: str = ""
    forced: bool = False
    #: Axes as the layers have them that the stack built from its plan, where they could be read.
    built: dict[str, Axis] = {}
    notes: list[str] = []
    padding: Literal["planned", "refused", "nothing", "no-layer", "unknown-backend"] = "no-layer"


class KnownBackends(msgspec.Struct, frozen=True):
    """Names that can be asked for, without those that leave the choice to the stack (`auto`)."""

    attention: tuple[str, ...]
    moe: tuple[str, ...]


class KernelChoice(msgspec.Struct):
    """What the stack's MoE oracle makes of a backend's name on a capability, its kernel packages taken as installed.

    `backend` is its own name of what it picked, empty where it refused (`refused` holds its words) or was not asked (no
    capability); `candidates` are its names of what was asked for. `scheme`: what meets the MXFP4 weights, `bf16`,
    `mxfp8` or the stack's word for another. `roundings`: a rank's logical intermediate width -> the kernel's, elements.
    """

    asked: str
    candidates: list[str]
    backend: str = ""
    refused: str = ""
    scheme: str = ""
    roundings: dict[int, int] = {}
    hidden: int = 0
    notes: list[str] = []


class PlanBuilder(Protocol):
    """Layer `plan`. Each call raises NotSupported, AdapterError, StackCrashed, StackTimeout.

    A planner without the last four answers no questions about guards, drafts and kernels: those claims are
    not-supported.
    """

    def plan(self, request: PlanRequest) -> PlanOutcome:
        """A refusal is an outcome, no exception."""

    def backends(self) -> KnownBackends: ...

    def guards(self, requests: Sequence[PlanRequest]) -> list[PlanOutcome]:
        """Outcome, message and padding of each, no layers built (axes: the draft's alone). Thousands are asked."""

    def kernel(self, request: PlanRequest, widths: Sequence[int]) -> KernelChoice:
        """The oracle's choice for `request.moe`, and how a rank's widths are rounded; no guard stands in the way."""

    def schemes(self, request: PlanRequest) -> dict[str, str]:
        """{module: quantization scheme} resolved for the target's layers, or for the draft's (`request.draft`)."""


class ExpertsRequest(msgspec.Struct, frozen=True):
    """One rank's routed-expert layer. `experts` of `geometry.num_experts` are built (ids 0..experts-1)."""

    geometry: Geometry
    tp: int
    rank: int
    backend: str
    experts: int
    capability: tuple[int, int] | None
    attention: str | None = None
    #: Go round a refusal of the whole configuration (not of the layer itself).
    force: bool = False
    #: Attributes declared on parameters before loading (`--repair`): {parameter: {attribute: value}}.
    attributes: dict[str, dict[str, int]] = {}


class ParameterInfo(msgspec.Struct, frozen=True):
    """One loaded parameter: its bytes are (experts, rows, cols). `dtype` is the stack's own name for it."""

    rows: int
    cols: int
    dtype: str


class ExpertsInfo(msgspec.Struct):
    """The layer as built. Widths are in elements of the intermediate axis of one rank."""

    parameters: dict[str, ParameterInfo]
    kernel_width: int
    backend: str
    logical_width: int | None = None
    notes: list[str] = []
    details: dict[str, Any] = {}


class ExpertsLayer(Protocol):
    """One rank's routed-expert layer, open for loading. A black box: bytes in, bytes out.

    One may have `load_all` as well, for speed; others are asked step by step.
    """

    info: ExpertsInfo

    def allocate(self, nbytes: int) -> torch.Tensor:
        """A flat uint8 buffer that sources are cut from: shared memory where the stack is another process. Every layer
        that the same loader has open takes sources from it, until this one is closed."""

    def share(self, part: FilePart) -> None:
        """Every layer that the same loader has open takes sources from this part of a file too, until `unshare`."""

    def unshare(self, part: FilePart) -> None: ...

    def initial(self, parameter: str, expert: int) -> torch.Tensor:
        """Bytes right after construction with `fill_uninitialized_memory`: (rows, cols). Zero there means that
        the stack initialised the byte; 0xFF (or a NaN's bytes), that it did not."""

    def fill(self, parameter: str, value: int) -> None:
        """Overwrite every byte of the parameter, all experts, with `value`."""

    def load(self, parameter: str, shard: str, expert: int, source: torch.Tensor) -> None:
        """Hand one checkpoint tensor (rows, cols), a contiguous view into an `allocate`d buffer, to the real loader.
        Raises StackRefused with the loader's own message if it raises or reports no success."""

    def read(self, parameter: str, expert: int) -> torch.Tensor:
        """One expert's bytes (rows, cols). Valid until the next call."""

    def write(self, parameter: str, expert: int, data: torch.Tensor) -> None:
        """Overwrite one expert's bytes: the seam at which faults are planted."""

    def close(self) -> None: ...


class LoadsAll(Protocol):
    """What an ExpertsLayer may have beside."""

    def load_all(self, sources: Sources) -> dict[str, torch.Tensor]:
        """`load` every source of a layer's only expert, then `read` every parameter, as they do. Valid until the
        layer's next call."""


#: {parameter: {shard: checkpoint tensor}} of one expert.
Sources = dict[str, dict[str, "torch.Tensor"]]


class ShardLoader(Protocol):
    """Layer `loader`."""

    def open_experts(self, request: ExpertsRequest) -> ExpertsLayer:
        """Raises StackRefused (the stack's validation), NotSupported, AdapterError, StackCrashed, StackTimeout."""


class Stack(Protocol):
    """What an entry point of `conformance.stacks` returns from `open_stack(options)`.

    Lazy: nothing heavy is imported or started before the first protocol object is asked for.
    """

    name: str

    def info(self) -> StackInfo:
        """Starts the stack if need be. Raises StackMissing with what to install."""

    def planner(self) -> PlanBuilder: ...

    def loader(self) -> ShardLoader: ...

    def close(self) -> None: ...


class StackOptions(msgspec.Struct, frozen=True):
    """How to reach a stack: `--vllm-python`, `--vllm-source`, the run folder's private parts, time limits."""

    python: str | None = None
    source: str | None = None
    #: The interpreter that holds the library whose quantisers are judged: `--python`.
    library_python: str | None = None
    work_dir: str | None = None
    #: Servers that are up: the root URL of the one that is judged, and of the one that it is compared with (or a run).
    endpoint: str = ""
    against: str = ""
    #: Seconds that one call into the stack may take, and that its start may take.
    call_timeout: float = 300.0
    start_timeout: float = 300.0
    #: A profile's padding that the reference stack emulates: {"intermediate": 128, "hidden": 128}.
    emulate: dict[str, int] = {}
    #: Pairs that the reference stack's guard accepts where padding is needed: (capability, attention, MoE); None: no
    #: guard is emulated.
    vetted: tuple[Vetted, ...] | None = None
    #: The MoE arithmetic that the reference stack emulates: what meets MXFP4 weights.
    arithmetic: Literal["bf16", "mxfp8", "nvfp4", "bf16_steps"] = "bf16"
    #: Head counts that the reference stack's attention takes, ascending (empty: any), and how it lays out the scales of
    #: its output projection (empty: BF16, no scales).
    head_paddings: tuple[int, ...] = ()
    output_scales: str = ""


class MoeCapabilities(msgspec.Struct, frozen=True):
    """What the MoE kernel declares of itself. It is held to exactly this arithmetic.

    `scheme` is what meets the MXFP4 weights: `bf16` (SM90) or `mxfp8` activations (SM100, SM120); `bf16_steps` (Marlin)
    stores every step in BF16 on the way, as `references/moe_staged.py` tells. `nvfp4` activations meet the same values.
    `slot_sum` is what the k slots of a token are summed in before the one rounding to `output`; `bf16_steps` has a rule
    of its own (`references/finalize.py`, stepped). `nan` says what becomes of a NaN or Inf in the input: FlashInfer's
    SM90 clamp swallows it. `device` is torch's name for where tensors live and references are computed; `ranks` tells
    how the ranks run (`in turn, in one process on one GPU`).
    `tile_tokens`: as many tokens of one expert surely meet in one tile. More are dealt to tiles in another order each
    time, where tiles cut sums at other places: their last bits may change from call to call. 0: bits never do.
    `empty_slots`: whether ids may hold -1 (no expert). `threads`: whether two threads may call layers of one process at
    the same time, a layer each (on a GPU: a stream each); nobody asks where that is not declared.
    `experts`: the most experts that checks should open (0: all of the geometry's), `tokens`: the most in one call.
    """

    scheme: Literal["bf16", "mxfp8", "nvfp4", "bf16_steps"]
    output: Literal["bfloat16", "float32"] = "bfloat16"
    slot_sum: Literal["float32", "bfloat16"] = "float32"
    nan: Literal["visible", "swallowed"] = "visible"
    pins_tactics: bool = False
    tile_tokens: int = 0
    device: str = "cpu"
    device_words: str = "CPU"
    ranks: str = "in turn, in one process"
    experts: int = 0
    tokens: int = 4096
    empty_slots: bool = True
    threads: bool = False
    notes: tuple[str, ...] = ()


class LoadedWeights(Protocol):
    """One rank's routed-expert parameters as its loader left them, made a few experts at a time."""

    def info(self, parameter: str) -> ParameterInfo:
        """Rows and bytes of one expert: w13 (2 K, H / 2), its scales (2 K, H / 32), w2 (H, K / 2), (H, K / 32)."""

    def read(self, parameter: str, first: int, last: int, device: str = "cpu") -> torch.Tensor:
        """Experts [first, last): uint8 (last - first, rows, cols), fresh memory on that device."""


class MoeRequest(msgspec.Struct, frozen=True):
    """One rank's routed experts, to be prepared once. `tp` 1, `rank` 0 asks for the whole layer.

    `limit` clamps SwiGLU, None does not; alpha and beta as in `references/swiglu.py`. `global_scales`: of the input and
    of the activation in NVFP4, float32 (value = code * block scale * global scale); other schemes have none.
    """

    geometry: Geometry
    tp: int
    rank: int
    backend: str
    capability: tuple[int, int] | None
    experts: int
    limit: float | None
    weights: LoadedWeights
    alpha: float = 1.0
    beta: float = 0.0
    global_scales: tuple[float, float] = (1.0, 1.0)


class TensorInfo(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    contiguous: bool = True


class MoeCall(msgspec.Struct):
    """One call of a kernel library as an adapter makes it, bound to the installed library's signature by name.

    `tensors` and `values` by argument (`quant_scales[0]` within a list); `refused`: why it does not bind.
    """

    function: str
    tensors: dict[str, TensorInfo] = {}
    values: dict[str, str] = {}
    refused: str = ""


class MoeCalls(Protocol):
    """A stack may offer `moe_calls`: what its adapter would call on a GPU that is not there. Nothing runs."""

    def __call__(self, request: MoeRequest, capability: tuple[int, int], tokens: int, slots: int) -> list[MoeCall]:
        """Raises StackMissing where the library is not installed, NotSupported for a capability that it has not."""


class MoeLayer(Protocol):
    """Prepared weights of one rank."""

    def run(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        out: torch.Tensor,
        tactic: int | None = None,
    ) -> None:
        """x (M, H) bfloat16, ids (M, k) int32 (-1: no expert), weights (M, k) float32, all on the kernel's device.

        Writes every element of `out` (M, H), of the output type, which comes poisoned. `tactic`: one of `tactics()`.
        """

    def tactics(self) -> int:
        """How many tactics can be pinned; 0 where the kernel pins none."""

    def close(self) -> None: ...


class MoeKernel(Protocol):
    """Layer `moe`. A stack that has one offers it as `moe()`, beside `planner()` and `loader()`."""

    def capabilities(self) -> MoeCapabilities: ...

    def open(self, request: MoeRequest) -> MoeLayer:
        """Raises StackRefused (the kernel's own validation), NotSupported, AdapterError, StackCrashed."""
