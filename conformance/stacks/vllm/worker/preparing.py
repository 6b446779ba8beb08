"""Post-load: vLLM's own conversion of loaded routed experts to its kernel's layout, a few experts at a time."""

from . import configs, helpers, kernels, oracle, recording, routed
from .fake_platform import pretend
from .problems import Refused, Unsupported, stacks_words
from .sessions import buffers, sessions

PARAMETERS = routed.PARAMETERS


class Session:
    """A layer of `experts` experts as its constructor leaves it, and what must be in place whenever it is used."""

    def __init__(self, layer, config, capability, backend):
        self.layer, self.config, self.capability = layer, config, capability
        self.backend, self.kernel = backend, backend.name
        self.shapes = {name: tuple(getattr(layer, name).shape) for name in PARAMETERS}
        self.dtypes = {name: getattr(layer, name).dtype for name in PARAMETERS}


def open_prepared(folder, tp, rank, backend, capability, experts, share):
    """PrepareInfo's fields (`loaded` as {parameter: [rows, cols]}) and the session. Raises Refused, Unsupported.

    The configuration is TP1's, as in `kernels`: no guard of the whole model stands between a layer and its layout.
    """
    from vllm.config import set_current_vllm_config

    wanted = oracle.candidates(backend)
    config = configs.vllm_config(configs.model_config(folder), 1, capability, "auto", None, guarded=False)
    with set_current_vllm_config(config):
        picked = kernels.picked(config, tp, rank, backend, capability, experts, share)
        chosen = next((b for b in wanted if b.name == picked), wanted[0])
        scheme = oracle.scheme(chosen)
        if not helpers.known(chosen.name):
            raise Unsupported(f"the harness has no recipe for the layout of {chosen.name}: it knows FlashInfer CUTLASS")
        layer = routed.build(config, tp, rank, backend, chosen, experts, capability, width=share * tp)
    session = Session(layer, config, capability, chosen)
    for name, shape in session.shapes.items():
        if len(shape) != 3 or getattr(layer, name).element_size() != 1:
            raise Unsupported(f"{name} is {shape} {session.dtypes[name]}; (experts, rows, cols) of one byte was due")
    return {
        "session": sessions.add(session),
        "kernel": chosen.name,
        "scheme": scheme,
        "loaded": {name: list(shape[1:]) for name, shape in session.shapes.items()},
        "helpers": helpers.words(scheme),
        "notes": [],
    }


def convert(session, source, target):
    """Take every parameter from the start of one shared buffer, one after the other in PARAMETERS' order, run the
    quantization method's own post-load step on them, and put what the layer then holds into another, in memory order.

    Returns {parameter: [shape, dtype, contiguous, bytes]}. Raises Refused (vLLM's words), Unsupported (takes a GPU).
    """
    import torch

    opened = sessions[session]
    given, offset = {}, 0
    for name, shape in opened.shapes.items():
        size = shape[0] * shape[1] * shape[2]
        given[name] = buffers[source][offset : offset + size].view(shape).view(opened.dtypes[name]).clone()
        offset += size
    _convert(opened, given)
    answer, offset = {}, 0
    for name in PARAMETERS:
        held = getattr(opened.layer, name)
        if not isinstance(held, torch.Tensor):
            raise Unsupported(f"{opened.kernel} keeps {name} as {type(held).__name__}, no tensor")
        data = held.data
        flat = data.contiguous().view(-1).view(torch.uint8)
        if offset + flat.numel() > buffers[target].numel():
            raise Refused(f"{name} has grown to {flat.numel()} bytes: {tuple(data.shape)} {data.dtype}")
        buffers[target][offset : offset + flat.numel()].copy_(flat)
        offset += flat.numel()
        dtype = str(data.dtype).removeprefix("torch.")
        answer[name] = [list(data.shape), dtype, data.is_contiguous(), flat.numel()]
    return answer


def _convert(opened, given):
    import torch
    from vllm.config import set_current_vllm_config

    layer = opened.layer
    for name, data in given.items():
        setattr(layer, name, torch.nn.Parameter(data, requires_grad=False))
    try:
        with (
            set_current_vllm_config(opened.config),
            pretend(opened.capability),
            helpers.on_cpu(),
            recording.no_kernel(),
        ):
            layer.quant_method.process_weights_after_loading(layer)
    except Unsupported:
        raise
    except Exception as error:
        raise Refused(f"post-load conversion for {opened.kernel}: {stacks_words(error)}") from error


def call(session, tokens, slots):
    """MoeCall's fields. The layer's weights are zeros, converted as always; SM90's are taken as rearranged."""
    import torch
    from vllm.config import set_current_vllm_config

    opened = sessions[session]
    zeros = {n: torch.zeros(shape, dtype=torch.uint8).view(opened.dtypes[n]) for n, shape in opened.shapes.items()}
    with helpers.shapes_alone():
        _convert(opened, zeros)
    with set_current_vllm_config(opened.config), pretend(opened.capability):
        return recording.call(opened.layer, oracle.scheme(opened.backend), tokens, slots)


def close(session):
    """Free the layer's memory at once."""
    import torch

    for name in PARAMETERS:
        setattr(sessions[session].layer, name, torch.nn.Parameter(torch.empty(0, dtype=torch.uint8), False))
    sessions.drop(session)
