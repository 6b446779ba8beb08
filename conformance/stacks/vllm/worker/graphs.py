"""CUDA graphs of calls that this worker makes, captured and replayed here over memory that is kept for each graph.

Tensors come by the names of the harness's buffers, in their order: see graph_protocol there.
"""

import collections
import contextlib
import functools
import importlib
from collections.abc import Callable
from typing import Any

from . import attention_layer, flashmla, moe, tensors
from .problems import Refused, refusals, stacks_words
from .sessions import Table

_DEVICE = "cuda"
_WARM_UPS = 3
_DISTURBING_BYTES = 1 << 28
#: Requests at a time, and tokens in a step, of `vllm serve` there (`EngineArgs.get_batch_defaults`).
_SERVED = 1024, 8192

layers = Table("captured call")
graphs = Table("graph")
pools = Table("pool")


class Layer:
    """`step` is what is captured, and what eager calls, over a NamedTuple of buffers."""

    def __init__(self, step):
        self.step = step


class Graph:
    """`tensors` are what it was captured over, by name."""

    def __init__(self, graph, tensors):
        self.graph = graph
        self.tensors = tensors


def graph(part, lend, **given):
    """One part: `lend` is the buffer, its spans and tensors, which the part finds by name; `given` are plain values."""
    with tensors.lent(**lend, device=_DEVICE) as lent, refusals(part):
        return CALLS[part](lent, **given)


def open_attend(lent, **request):
    """Attention decode; `request` as flashmla.attend takes it."""
    return layers.add(Layer(lambda buffers: _attend(buffers, buffers.out, request)))


def _attend(buffers, out, request):
    names = {**buffers._asdict(), "out": out}
    flashmla.attend({name.replace("entries", "compressed"): t for name, t in names.items()}, phase="decode", **request)


def open_experts(lent, session):
    """A layer that moe.open_moe opened. First it runs on the buffers that are lent, of the most tokens that will be
    captured: vLLM's workspace grows by what it is asked for, and its own profile run asks for the most."""
    opened = moe.layers[session]

    def step(buffers):
        buffers.out.copy_(moe.apply(opened, buffers.x, buffers.ids, buffers.weights))

    step(_buffers(lent))
    return layers.add(Layer(step))


def open_decoder(lent, attend, output, session):
    """Attention decode, the output projection of session `output`, and the experts of `session` on what it gives."""
    import torch

    opened = moe.layers[session]

    def step(buffers):
        attended = torch.empty_like(buffers.q)
        _attend(buffers, attended, attend)
        x = attention_layer.project(output, attended, buffers.positions)
        buffers.out.copy_(moe.apply(opened, x, buffers.ids, buffers.weights))

    return layers.add(Layer(step))


def captured_sizes(lent):
    """What vLLM's own rule captures with the defaults of a server on a GPU of 70 GiB and more, ascending."""
    from types import SimpleNamespace

    from vllm.config import CUDAGraphMode, DeviceConfig, VllmConfig

    config = VllmConfig(device_config=DeviceConfig("cpu"))
    config.model_config = SimpleNamespace(enforce_eager=False)
    config.scheduler_config.max_num_seqs, config.scheduler_config.max_num_batched_tokens = _SERVED
    chosen = config.compilation_config
    chosen.cudagraph_mode = CUDAGraphMode.FULL_AND_PIECEWISE
    chosen.cudagraph_capture_sizes = chosen.max_cudagraph_capture_size = None
    config._set_cudagraph_sizes()
    return sorted(chosen.cudagraph_capture_sizes)


def change(lent, layer, fault):
    """Plant the fault of that name in the call: a function of the module graph_steps, which is sent along."""
    graph_steps = importlib.import_module(f"{__package__}.graph_steps")

    layers[layer].step = getattr(graph_steps, fault)(layers[layer].step)


def _buffers(lent):
    """The NamedTuple that a call takes, as the harness's own."""
    names = " ".join(lent)
    return collections.namedtuple("Buffers", names)(**lent)


@functools.cache
def _stream():
    import torch

    return torch.cuda.Stream()


def eager(lent, layer):
    layers[layer].step(_buffers(lent))


def warm_up(lent, layer):
    import torch

    stream = _stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS):
            layers[layer].step(_buffers(lent))
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()


def open_pool(lent):
    import torch

    return pools.add(torch.cuda.graph_pool_handle())


def open_graph(lent, layer, pool):
    """On a side stream; `pool` 0: memory of its own. Raises Refused with the words of a capture that fails."""
    import torch

    buffers, made = _buffers(lent), torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(made, pool=pools[pool] if pool else None, stream=_stream()):
            layers[layer].step(buffers)
    except RuntimeError as error:
        with contextlib.suppress(RuntimeError):
            torch.cuda.synchronize()
        raise Refused(f"the call of {len(buffers[0])} tokens cannot be captured: {stacks_words(error)}") from error
    return graphs.add(Graph(made, dict(lent)))


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
        blocks = [torch.full((size,), 255, dtype=torch.uint8, device=_DEVICE) for size in sizes]
        torch.cuda.synchronize()
        del blocks


def close_graph(lent, number):
    import torch

    torch.cuda.synchronize()
    graphs[number].graph.reset()
    graphs.drop(number)


def close_layer(lent, number):
    layers.drop(number)


CALLS: dict[str, Callable[..., Any]] = {
    "open_attend": open_attend,
    "open_experts": open_experts,
    "open_decoder": open_decoder,
    "captured_sizes": captured_sizes,
    "change": change,
    "eager": eager,
    "warm_up": warm_up,
    "open_pool": open_pool,
    "open_graph": open_graph,
    "replay": replay,
    "held": held,
    "disturb": disturb,
    "close_graph": close_graph,
    "close_layer": close_layer,
}
