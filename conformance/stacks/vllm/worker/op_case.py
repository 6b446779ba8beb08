"""An operator of vLLM's, how the model's code calls it, and arguments made up for it."""

import importlib
from collections import namedtuple


class Made:
    """Values from one seed for each batch and number, on one device."""

    def __init__(self, batch, number, device="cpu"):
        import torch

        self.t, self._device = batch, device
        self._rng = torch.Generator().manual_seed(1000 * batch + number)

    def floats(self, *shape):
        """float32, normal."""
        import torch

        return torch.randn(*shape, generator=self._rng).to(self._device)

    def bf16(self, *shape):
        return self.floats(*shape).bfloat16()

    def integers(self, least, end, *shape, dtype):
        """From `least` on and less than `end`."""
        import torch

        return torch.randint(least, end, shape, generator=self._rng).to(self._device, getattr(torch, dtype))

    def distinct(self, rows, end, each, *, dtype):
        """(rows, each): in a row no number twice, all less than `end`."""
        import torch

        order = torch.rand(rows, end, generator=self._rng).argsort(1)[:, :each]
        return order.contiguous().to(self._device, getattr(torch, dtype))

    def empty(self, like):
        """Memory for a result that a call must fill: of ones, so that what is left alone is the same each time."""
        import torch

        return torch.ones_like(like)


#: As op_protocol.CustomOp, for this end.
Op = namedtuple("Op", "op call arguments batches runners", defaults=((8, 5), None))
#: `module`: where a Python function of that name is what the model's code calls; "": the operator itself. `registers`:
#: the module that registers it, where it is another.
Case = namedtuple("Case", "name make module registers")


def case(name, make, module="", registers=""):
    return Case(name, make, module, registers or module)


def found(one, device="cpu"):
    """The operator of a case, or None where this vLLM has none of that name."""
    import torch

    namespace, name = one.name.split("::")
    _module(one.registers)
    packet = getattr(getattr(torch.ops, namespace), name, None)
    if packet is None:
        return None
    call = getattr(_module(one.module), name) if one.module else packet
    return Op(packet.default, call, lambda batch, number: one.make(Made(batch, number, device)))


def _module(name):
    """None for no name, or for one that this vLLM has not."""
    try:
        return importlib.import_module(name) if name else None
    except ModuleNotFoundError:
        return None
