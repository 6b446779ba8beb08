"""Open layers and shared buffers, and the byte traffic between them. One copy an operation, no conversion anywhere."""

import contextlib
import itertools
import json
import mmap
from pathlib import Path

from . import building
from .problems import Refused, stacks_words
from .routed import LAYER, PARAMETERS


class Table:
    """Things by number, for the harness to name them by."""

    def __init__(self, what):
        self.what = what
        self.held = {}
        self.numbers = itertools.count(1)

    def add(self, thing):
        number = next(self.numbers)
        self.held[number] = thing
        return number

    def __getitem__(self, number):
        if number not in self.held:
            raise LookupError(f"no {self.what} {number} is open")
        return self.held[number]

    def drop(self, number):
        self.held.pop(number, None)


sessions = Table("layer")
buffers = Table("buffer")
#: Numbers of the buffers that are page-locked.
pinned: set[int] = set()


class Session:
    """One RoutedExperts and the VllmConfig that must be current whenever it is built or loaded."""

    def __init__(self, layer, config, attributes):
        self.layer = layer
        self.config = config
        self.attributes = attributes
        self.parameters = {name: getattr(layer, name) for name in PARAMETERS}
        self.twin = None
        self.initial = None
        self.home = None
        declare(self.parameters, attributes)

    def shapes(self):
        """{parameter: (rows, cols, dtype)}; a parameter is (experts, rows, cols), one byte an element."""
        shapes = {}
        for name, parameter in self.parameters.items():
            if parameter.dim() != 3 or parameter.element_size() != 1:
                kind = f"{tuple(parameter.shape)} {parameter.dtype}"
                raise TypeError(f"{name} is {kind}; (experts, rows, cols) of one byte each was due")
            shapes[name] = (parameter.shape[1], parameter.shape[2], str(parameter.dtype).removeprefix("torch."))
        return shapes

    def declared(self, name):
        """The plain attributes that a parameter carries: what its loader goes by."""
        simple = (bool, int, float, str)
        return {k: v for k, v in vars(self.parameters[name]).items() if isinstance(v, simple) and k[0] != "_"}

    def expert_bytes(self, name, expert):
        """uint8 view of one expert of a parameter, as the harness sees it: (rows, cols), or those rows in halves."""
        import torch

        self.settle()
        return self.seen(name, self.parameters[name].data[expert].view(torch.uint8))

    def seen(self, name, data):
        """One expert's bytes in the order in which the harness sees them."""
        return data

    def settle(self):
        """Have everything loaded that was handed over."""

    def load(self, parameter, shard, expert, source):
        """Hand one checkpoint tensor to the real loader."""
        target = self.parameters[parameter]
        try:
            done = self.layer.weight_loader(
                target,
                source.view(target.dtype),
                f"{LAYER}.routed_experts.{parameter}",
                shard_id=shard,
                expert_id=expert,
                return_success=True,
            )
        except (Exception, SystemExit) as error:
            raise Refused(stacks_words(error)) from error
        if not done:
            raise Refused(f"the loader reports that it did not load {shard} of expert {expert} into {parameter}")


def declare(parameters, attributes):
    """Set attributes on parameters, as a repaired stack would: {parameter: {attribute: value}}."""
    for name, values in attributes.items():
        if name not in parameters:
            raise LookupError(f"no parameter {name}; known: {', '.join(parameters)}")
        for attribute, value in values.items():
            setattr(parameters[name], attribute, value)


def attach(path, nbytes):
    """Map a shared file of `nbytes` bytes; its number."""
    import torch

    return buffers.add(torch.from_file(path, shared=True, size=nbytes, dtype=torch.uint8))


def attach_file(path, start, nbytes):
    """Map part of a file, read-only as far as the file is concerned; its number."""
    import torch

    with Path(path).open("rb") as file:
        held = mmap.mmap(file.fileno(), nbytes, access=mmap.ACCESS_COPY, offset=start)
    return buffers.add(torch.frombuffer(held, dtype=torch.uint8))


def pin(buffer):
    """Page-lock it for fast copies to a GPU; whether the driver did."""
    import torch

    if not torch.cuda.is_available():
        return False
    tensor = buffers[buffer]
    try:
        done = int(torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.numel(), 0)) == 0
    except (RuntimeError, AttributeError):
        return False
    if done:
        pinned.add(buffer)
    else:  # the next launch reports that error once: let that be none of the kernel's under test
        with contextlib.suppress(RuntimeError):
            torch.ones(1, device="cuda").add_(1)
    return done


def detach(buffer):
    if buffer in pinned:
        import torch

        pinned.discard(buffer)
        torch.cuda.cudart().cudaHostUnregister(buffers[buffer].data_ptr())
    buffers.drop(buffer)


def fill(session, parameter, value):
    """Every byte of the parameter, all experts."""
    import torch

    opened = sessions[session]
    opened.settle()
    opened.parameters[parameter].data.view(torch.uint8).fill_(value)


def load(session, parameter, shard, expert, buffer, offset, rows, cols):
    """Hand one checkpoint tensor to the real loader. Raises Refused with its words, or if it reports no success."""
    with _current(sessions[session]) as opened:
        _load(opened, expert, parameter, shard, buffer, offset, rows, cols)


def load_all(session, loads, places, buffer):
    """All tensors of a layer's only expert, [parameter, shard, buffer, offset, rows, cols]. What each parameter holds
    then lies in a shared buffer, [parameter, where]: they live there from the first call on. Both lists as JSON."""
    opened = sessions[session]
    places = json.loads(places)
    if opened.home != buffer:
        for parameter, start in places:
            _move(opened.parameters[parameter], buffers[buffer][start:])
        opened.home = buffer
    with _current(opened):
        for one in json.loads(loads):
            _load(opened, 0, *one)
    for parameter, start in places:
        view = opened.expert_bytes(parameter, 0)
        if view.data_ptr() != buffers[buffer][start:].data_ptr():  # the loader gave it other memory
            read(session, parameter, 0, buffer, start)


def _move(parameter, memory):
    """Let a parameter of one byte an element live there."""
    import torch

    if parameter.shape[0] != 1 or not parameter.is_contiguous():
        raise ValueError(f"one expert, contiguous, was due; got {tuple(parameter.shape)}")
    there = memory[: parameter.numel()].view(parameter.shape)
    there.copy_(parameter.data.view(torch.uint8))
    parameter.data = there.view(parameter.dtype)


@contextlib.contextmanager
def _current(opened):
    """Inside, the configuration that the layer was built from is vLLM's current one."""
    from vllm.config import get_current_vllm_config_or_none, set_current_vllm_config

    with set_current_vllm_config(opened.config):
        if get_current_vllm_config_or_none() is not opened.config:
            raise RuntimeError("another VllmConfig is current: the loader would cut by // tp_size and prove nothing")
        yield opened


def _load(opened, expert, parameter, shard, buffer, offset, rows, cols):
    opened.load(parameter, shard, expert, buffers[buffer][offset : offset + rows * cols].view(rows, cols))


def read(session, parameter, expert, buffer, start=0):
    """Copy one expert's bytes into a shared buffer."""
    view = sessions[session].expert_bytes(parameter, expert)
    buffers[buffer][start : start + view.numel()].view(view.shape).copy_(view)


def write(session, parameter, expert, buffer):
    """Overwrite one expert's bytes from the start of a shared buffer."""
    view = sessions[session].expert_bytes(parameter, expert)
    view.copy_(buffers[buffer][: view.numel()].view(view.shape))


def initial(session, parameter, buffer):
    """Bytes as constructed, where memory that nobody initialised is 0xFF (or a NaN): from a twin with one expert."""
    import torch
    from vllm.config import set_current_vllm_config

    opened = sessions[session]
    if opened.initial is None:
        with building.marking_uninitialised(), set_current_vllm_config(opened.config):
            twin = opened.twin()
        opened.initial = {name: getattr(twin, name).data[0].view(torch.uint8).clone() for name in PARAMETERS}
    view = opened.seen(parameter, opened.initial[parameter])
    buffers[buffer][: view.numel()].view(view.shape).copy_(view)


def close(session):
    """Free the layer's memory at once: the layer and its parameters' loaders hold each other."""
    import torch

    for parameter in sessions[session].parameters.values():
        parameter.data = torch.empty(0, dtype=parameter.dtype)
    sessions.drop(session)
