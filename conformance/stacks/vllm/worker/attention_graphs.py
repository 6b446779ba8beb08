"""CUDA graphs of attention decode, captured and replayed here over memory that is kept for each graph."""

import contextlib
import functools

from . import flashmla
from .problems import Refused, stacks_words
from .sessions import Table

_WARM_UPS = 3
_DISTURBING_BYTES = 1 << 28

graphs = Table("graph")
pools = Table("pool")


class Graph:
    """`tensors` are what it was captured over, by name."""

    def __init__(self, graph, tensors):
        self.graph = graph
        self.tensors = tensors


@functools.cache
def _stream():
    import torch

    return torch.cuda.Stream()


def warm_up(lent, **given):
    import torch

    stream = _stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS):
            flashmla.attend(lent, phase="decode", **given)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()


def open_pool(lent):
    import torch

    return pools.add(torch.cuda.graph_pool_handle())


def open_graph(lent, pool, **given):
    """On a side stream; `pool` 0: memory of its own. Raises Refused with the words of a capture that fails."""
    import torch

    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, pool=pools[pool] if pool else None, stream=_stream()):
            flashmla.attend(lent, phase="decode", **given)
    except RuntimeError as error:
        with contextlib.suppress(RuntimeError):
            torch.cuda.synchronize()
        raise Refused(f"the call of {len(lent['q'])} tokens cannot be captured: {stacks_words(error)}") from error
    return graphs.add(Graph(graph, dict(lent)))


def replay(lent, numbers):
    """The first graph. `lent` holds the buffers of all of them as `0.q`, `1.q`, ...: what the replay does to the others
    is told too."""
    import torch

    memory = {}
    for index, number in enumerate(numbers):
        for name, tensor in graphs[number].tensors.items():
            mine, theirs = _storage(tensor), _storage(lent[f"{index}.{name}"])
            memory[mine.data_ptr()] = mine, theirs
    for mine, theirs in memory.values():
        mine.copy_(theirs)
    graphs[numbers[0]].graph.replay()
    torch.cuda.synchronize()
    for mine, theirs in memory.values():
        theirs.copy_(mine)


def _storage(tensor):
    """All the memory that a tensor is cut from, as bytes."""
    import torch

    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def held(lent):
    import torch

    return torch.cuda.memory_allocated()


def disturb(lent):
    """Twice: a large block, and many small ones such as kernels take for their intermediates."""
    import torch

    for _ in range(2):
        sizes = [_DISTURBING_BYTES, *(1 << size for size in range(9, 25))]
        blocks = [torch.full((size,), 255, dtype=torch.uint8, device=flashmla.DEVICE) for size in sizes]
        torch.cuda.synchronize()
        del blocks


def close_graph(session):
    import torch

    torch.cuda.synchronize()
    graphs[session].graph.reset()
    graphs.drop(session)


CALLS = {
    "warm_up": warm_up,
    "open_pool": open_pool,
    "open_graph": open_graph,
    "replay": replay,
    "held": held,
    "disturb": disturb,
    "close_graph": close_graph,
}
