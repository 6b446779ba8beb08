"""One rank's whole model, shortened, on the CPU: checkpoint tensors go in by name through vLLM's own default loader."""

import math
import mmap
import warnings
from pathlib import Path

from . import building, configs, experts, stubs
from . import draft as drafts
from .fake_platform import pretend
from .problems import Refused, Unsupported, stacks_words
from .sessions import buffers, sessions

#: safetensors' names of dtypes -> torch's.
_DTYPES = {
    "BF16": "bfloat16",
    "F16": "float16",
    "F32": "float32",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "U8": "uint8",
    "I8": "int8",
    "I32": "int32",
    "I64": "int64",
}
#: A checkpoint tensor up to this many bytes is made contiguous, as a file's would be; a larger one is expanded.
_CONTIGUOUS = 64 << 20


class Session:
    """The model, its configuration, and how to shorten that again while weights are loaded."""

    def __init__(self, model, config, tp, rank, capability, shortening):
        self.model = model
        self.config = config
        self.tp, self.rank, self.capability = tp, rank, capability
        self.shortening = shortening
        self.parameters = dict(model.named_parameters())
        self.parameters |= {n: b for n, b in _saved_buffers(model) if n not in self.parameters}


def open_model(folder, tp, rank, backend, capability, attention, force, layers, experts_built, draft):
    """Returns {session, parameters: {name: [shape, dtype]}, notes}. Raises Refused, Unsupported."""
    named = backend if backend in configs.moe_backends() else "auto"
    config, notes, forced = experts.configuration(folder, tp, capability, named, attention, force)
    if forced:
        raise Refused(f"no plan, not even by force: {notes[0]}")
    if draft:
        config.speculative_config = drafts.configured(config.model_config, tp, capability)
    shortening = (layers, experts_built, draft)
    try:
        with building.marking_uninitialised(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = building.build(
                config, tp, capability, backend, rank, layers, experts_built, device="cpu", draft=draft
            )
    except (ImportError, NotImplementedError, Unsupported) as error:
        raise Unsupported(f"the model cannot be built here: {stacks_words(error)}") from error
    except Exception as error:
        raise Refused(f"the model cannot be built: {stacks_words(error)}") from error
    session = Session(model, config, tp, rank, capability, shortening)
    described = {name: [list(p.shape), str(p.dtype).removeprefix("torch.")] for name, p in session.parameters.items()}
    return {
        "session": sessions.add(session),
        "parameters": described,
        "model": type(model).__name__,
        "notes": [*notes, stubs.NOTE.replace("torch's meta device", "the CPU")],
    }


def _saved_buffers(model):
    """Buffers that a checkpoint may hold."""
    for path, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield f"{path}.{name}" if path else name, buffer


def fill_model(session, value):
    """Every byte of every parameter."""
    import torch

    for parameter in sessions[session].parameters.values():
        parameter.data.view(-1).view(torch.uint8).fill_(value)


def load_model(session, tensors):
    """Hand over a whole checkpoint. `tensors`: [name, dtype, shape, dim, codes]: the element at index i of axis `dim`
    is codes[i], in stored bytes. Raises Refused with vLLM's words."""
    _load(
        session,
        [(name, dtype, lambda t=(dtype, shape, dim, codes): _tensor(*t)) for name, dtype, shape, dim, codes in tensors],
    )


def load_files(session, tensors):
    """The same from files. `tensors`: [name, dtype, shape, full shape, path, byte offset]."""
    _load(session, [(name, dtype, lambda t=(dtype, *rest): _mapped(*t)) for name, dtype, *rest in tensors])


def _load(session, tensors):
    """Through vLLM's default loader, its check for missing weights included, as this version has it.

    `tensors`: (name, dtype, function that makes it).
    """
    from vllm.config import set_current_vllm_config
    from vllm.config.load import LoadConfig
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    opened = sessions[session]
    if unknown := {dtype for _, dtype, _ in tensors} - set(_DTYPES):
        raise ValueError(f"no such dtypes: {', '.join(sorted(unknown))}")
    handed = []

    class Synthetic(DefaultModelLoader):
        def get_all_weights(self, model_config, model):
            for name, _, make in tensors:
                handed.append(name)
                yield name, make()

    loader = Synthetic(LoadConfig())
    loader.counter_before_loading_weights = 0.0
    described = opened.config.model_config
    if opened.shortening[2]:
        described = opened.config.speculative_config.draft_model_config
    try:
        with (
            building.shortened(opened.config, *opened.shortening),
            stubs.standing_in(opened.tp, opened.rank),
            pretend(opened.capability, cuda=False),
            set_current_vllm_config(opened.config),
        ):
            loader.load_weights(opened.model, described)
    except (Exception, SystemExit) as error:
        raise Refused(stacks_words(error)) from error
    if len(handed) != len(tensors):
        raise Refused(f"the loader asked for {len(handed)} of {len(tensors)} tensors")


def _mapped(dtype, shape, full, path, offset):
    """The tensor in the file, mapped and not copied, as safetensors hands it out."""
    import torch

    kind = getattr(torch, _DTYPES[dtype])
    count = math.prod(full) * kind.itemsize
    page = offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    with Path(path).open("rb") as file:
        held = mmap.mmap(file.fileno(), offset - page + count, access=mmap.ACCESS_COPY, offset=page)
    tensor = torch.frombuffer(held, dtype=torch.uint8, count=count, offset=offset - page).view(kind).view(full)
    for axis, length in enumerate(shape):
        tensor = tensor.narrow(axis, 0, length)
    return tensor


def _tensor(dtype, shape, dim, codes):
    import torch

    kind = getattr(torch, _DTYPES[dtype])
    line = torch.frombuffer(bytearray(codes), dtype=torch.uint8).view(kind)
    if not shape:
        return line.reshape(())
    line = line.view([-1 if axis == dim else 1 for axis in range(len(shape))]).expand(shape)
    return line.contiguous() if line.numel() * line.element_size() <= _CONTIGUOUS else line


def read_model(session, parameter, first, last, buffer):
    """Copy bytes [first, last) of a parameter, in memory order, to the start of a shared buffer."""
    import torch

    data = sessions[session].parameters[parameter].data
    flat = data.contiguous().view(-1).view(torch.uint8)
    buffers[buffer][: last - first].copy_(flat[first:last])


def close_model(session):
    import torch

    for parameter in sessions[session].parameters.values():
        parameter.data = torch.empty(0, dtype=parameter.dtype)
    sessions.drop(session)
