"""The calls that the harness makes, by name. Nothing heavy is imported before `start`."""

import importlib

from . import sessions
from .start import start


def info():
    from . import identity

    start()
    return identity.info()


def plan(**request):
    from . import planning

    start()
    return planning.plan(**request)


def known():
    from . import guards

    start()
    return guards.known()


def guards(**request):
    from . import guards

    start()
    return guards.guards(**request)


def kernel(**request):
    from . import kernels

    start()
    return kernels.kernel(**request)


def schemes(**request):
    from . import draft

    start()
    return draft.schemes(**request)


def open_experts(**request):
    from . import experts

    start()
    return experts.open_experts(**request)


def choices(**request):
    from . import selecting

    start()
    return selecting.choices(**request)


def open_model(**request):
    from . import whole_model

    start()
    return whole_model.open_model(**request)


def moe_calls(**request):
    from . import moe

    start()
    return moe.moe_calls(**request)


def quant_calls(**request):
    from . import quant_calls

    start()
    return quant_calls.quant_calls(**request)


def attention_calls(**request):
    from . import attention_calls

    start()
    return attention_calls.attention_calls(**request)


def _whole_model(name):
    def call(**arguments):
        from . import whole_model

        return getattr(whole_model, name)(**arguments)

    return call


def _preparing(name):
    def call(**arguments):
        from . import preparing

        start()
        return getattr(preparing, name)(**arguments)

    return call


def _quantising(name):
    """Of the modules that drive quantisers of any library, sent along."""

    def call(**arguments):
        start()
        return getattr(importlib.import_module(f"{__package__}.calls"), name)(**arguments)

    return call


CALLS = {
    "info": info,
    "plan": plan,
    "known": known,
    "guards": guards,
    "kernel": kernel,
    "schemes": schemes,
    "open_experts": open_experts,
    "attach": sessions.attach,
    "attach_file": sessions.attach_file,
    "detach": sessions.detach,
    "fill": sessions.fill,
    "load": sessions.load,
    "load_all": sessions.load_all,
    "read": sessions.read,
    "write": sessions.write,
    "initial": sessions.initial,
    "close": sessions.close,
    "choices": choices,
    "open_prepared": _preparing("open_prepared"),
    "convert": _preparing("convert"),
    "record_call": _preparing("call"),
    "close_prepared": _preparing("close"),
    "open_model": open_model,
    "fill_model": _whole_model("fill_model"),
    "load_model": _whole_model("load_model"),
    "load_files": _whole_model("load_files"),
    "read_model": _whole_model("read_model"),
    "close_model": _whole_model("close_model"),
    "moe_calls": moe_calls,
    "open_library": _quantising("open_library"),
    "call_library": _quantising("call_library"),
    "attention_calls": attention_calls,
    "quant_calls": quant_calls,
}
