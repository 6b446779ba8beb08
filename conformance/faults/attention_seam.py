"""The seam of the attention layer: each part's call, before and after."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from conformance.stacks.attention_protocol import (
    AttendCall,
    AttentionCapabilities,
    AttentionKernel,
    Compressor,
    CompressorRequest,
    OutputLayer,
    OutputRequest,
    Pages,
    SelectCall,
    Sparse,
    StepCall,
)

if TYPE_CHECKING:
    import torch

    from conformance.geometry import Geometry
    from conformance.stacks.attention_calls_protocol import AttentionCalls, CallRequest
    from conformance.stacks.protocols import MoeCall

    Attend = Callable[[Callable[[AttendCall, torch.Tensor], None], AttendCall, torch.Tensor], None]
    Step = Callable[[Callable[[StepCall, torch.Tensor], None], StepCall, torch.Tensor], None]
    Insert = Callable[[Callable[..., None], "Inserting"], None]
    Project = Callable[[Callable[..., None], OutputRequest, torch.Tensor, torch.Tensor, torch.Tensor], None]


class Inserting(NamedTuple):
    kv: torch.Tensor
    positions: torch.Tensor
    table: torch.Tensor
    pages: Pages
    slots: torch.Tensor


class Compressing(NamedTuple):
    """One call of a compressor, see attention_protocol.Compressor."""

    kv: torch.Tensor
    gate: torch.Tensor
    positions: torch.Tensor
    requests: torch.Tensor
    pages: Pages
    slots: torch.Tensor


class AttentionFault(NamedTuple):
    """Each hook may be None.

    `says` changes what is declared, `padded` the count of heads, `made` a table as it is made (by ratio). `table`:
    another table is used wherever something is rotated. `attend`, `step`, `insert`, `select` and `output` run the clean
    part, or something else; `queries` changes what goes in. `entries` changes a compressor's request, `halves` its
    tokens, `compress` its calls, and `forgets` loses its state after each call; `compressor` is another one altogether.
    `sees` changes what the queries of a step see, numbers (T, K) of tokens and of entries, and `attend` does the rest.
    `call` changes what the adapter says it would call elsewhere.
    `rank`: of rank processes, the only one that is hit; elsewhere nothing is.
    """

    rank: int | None = None
    says: Callable[[AttentionCapabilities], AttentionCapabilities] | None = None
    padded: Callable[[int], int] | None = None
    made: Callable[[int, torch.Tensor], torch.Tensor] | None = None
    table: Callable[[torch.Tensor], torch.Tensor] | None = None
    queries: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]] | None = None
    attend: Attend | None = None
    step: Step | None = None
    insert: Insert | None = None
    entries: Callable[[CompressorRequest], CompressorRequest] | None = None
    halves: Callable[[torch.Tensor], torch.Tensor] | None = None
    compress: Callable[[CompressorRequest, Compressing], Compressing] | None = None
    compressor: Callable[[CompressorRequest], Compressor] | None = None
    forgets: bool = False
    sees: Callable[[StepCall, list[torch.Tensor]], list[torch.Tensor]] | None = None
    select: Callable[[Callable[[SelectCall], torch.Tensor], SelectCall], torch.Tensor] | None = None
    output: Project | None = None
    call: Callable[[list[MoeCall]], None] | None = None


class FaultyAttention:
    def __init__(self, inner: AttentionKernel, fault: AttentionFault):
        self._inner, self._fault = inner, fault

    def capabilities(self) -> AttentionCapabilities:
        clean = self._inner.capabilities()
        return self._fault.says(clean) if self._fault.says else clean

    def padded(self, heads: int) -> int:
        clean = self._inner.padded(heads)
        return self._fault.padded(clean) if self._fault.padded else clean

    def table(self, geometry: Geometry, ratio: int, positions: int) -> torch.Tensor:
        clean = self._inner.table(geometry, ratio, positions)
        return self._fault.made(ratio, clean) if self._fault.made else clean

    def _used(self, table: torch.Tensor) -> torch.Tensor:
        return self._fault.table(table) if self._fault.table else table

    def queries(self, q: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, eps: float) -> torch.Tensor:
        if self._fault.queries:
            q, positions = self._fault.queries(q, positions)
        return self._inner.queries(q, positions, self._used(table), eps)

    def insert(
        self, kv: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, pages: Pages, slots: torch.Tensor
    ) -> None:
        given = Inserting(kv, positions, self._used(table), pages, slots)
        if self._fault.insert:
            self._fault.insert(self._inner.insert, given)
        else:
            self._inner.insert(*given)

    def attend(self, call: AttendCall, out: torch.Tensor) -> None:
        if self._fault.attend:
            self._fault.attend(self._inner.attend, call, out)
        else:
            self._inner.attend(call, out)

    def step(self, call: StepCall, out: torch.Tensor) -> None:
        if self._fault.step:
            self._fault.step(self._inner.step, call, out)
        elif self._fault.sees:
            self._inner.attend(_attending(call, self._fault.sees(call, _seen(call)), self._inner.capabilities()), out)
        else:
            self._inner.step(call, out)

    def compressor(self, request: CompressorRequest) -> Compressor:
        asked = self._fault.entries(request) if self._fault.entries else request
        return _FaultyCompressor(self._inner, asked._replace(table=self._used(asked.table)), self._fault)

    def select(self, call: SelectCall) -> torch.Tensor:
        return self._fault.select(self._inner.select, call) if self._fault.select else self._inner.select(call)

    def output(self, request: OutputRequest) -> OutputLayer:
        import msgspec

        asked = msgspec.structs.replace(request, table=self._used(request.table))
        return _FaultyOutput(self._inner.output(asked), asked, self._fault)


def _seen(call: StepCall) -> list[torch.Tensor]:
    """Numbers of the tokens and, with compression, of the entries that each query sees."""
    from references import attention_seen

    found = [attention_seen.window(call.positions, call.window)]
    if call.selected is not None:
        found.append(call.selected.long())
    elif call.ratio:
        most = max(1, int(call.lengths.max()) // call.ratio)
        found.append(attention_seen.entries(call.positions, call.ratio, most))
    return found


def _attending(call: StepCall, numbers: list[torch.Tensor], can: AttentionCapabilities) -> AttendCall:
    import torch

    from references import attention_seen

    parts: list[Sparse | None] = []
    caches = ((call.window_pages, call.window_table), (call.compressed_pages, call.compressed_table))
    for seen, (pages, table) in zip(numbers, caches, strict=False):
        assert pages is not None and table is not None
        slots = attention_seen.slots(seen, call.requests, table, pages.tokens)
        wide = torch.nn.functional.pad(slots, (0, -slots.shape[1] % can.aligned_slots), value=-1)
        lengths = torch.full((len(wide),), wide.shape[1], dtype=torch.int32, device=wide.device)
        parts.append(Sparse(pages, wide.to(getattr(torch, can.slots)), lengths))
    window, compressed = parts[0], parts[1] if len(parts) > 1 else None
    assert window is not None
    return AttendCall("decode", call.q, call.sinks, call.scale, window, compressed)


class _FaultyCompressor:
    def __init__(self, kernel: AttentionKernel, request: CompressorRequest, fault: AttentionFault):
        self._request, self._fault = request, fault
        self._open = fault.compressor or kernel.compressor
        self._inner = self._open(request)

    def run(self, kv: torch.Tensor, gate: torch.Tensor, *rest: Any) -> None:
        if self._fault.halves:
            kv, gate = self._fault.halves(kv), self._fault.halves(gate)
        given = Compressing(kv, gate, *rest)
        if self._fault.compress:
            given = self._fault.compress(self._request, given)
        try:
            self._inner.run(*given)
        finally:
            if self._fault.forgets:
                self._inner.close()
                self._inner = self._open(self._request)

    def close(self) -> None:
        self._inner.close()


class _FaultyOutput:
    def __init__(self, inner: OutputLayer, request: OutputRequest, fault: AttentionFault):
        self._inner, self._request, self._fault = inner, request, fault

    def run(self, o: torch.Tensor, positions: torch.Tensor, out: torch.Tensor) -> None:
        if self._fault.output:
            self._fault.output(self._inner.run, self._request, o, positions, out)
        else:
            self._inner.run(o, positions, out)

    def close(self) -> None:
        self._inner.close()


class FaultyAttentionCalls:
    def __init__(self, inner: AttentionCalls, fault: Callable[[list[MoeCall]], None]):
        self._inner, self._fault = inner, fault

    def __call__(self, request: CallRequest) -> list[MoeCall]:
        calls = self._inner(request)
        self._fault(calls)
        return calls
