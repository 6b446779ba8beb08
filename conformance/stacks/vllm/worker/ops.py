"""vLLM's custom operators, measured in this process: which of the cases this vLLM has, and what each does."""

import importlib
from pathlib import Path

from . import op_case, op_cases_any, op_cases_cpu, op_cases_gpu
from .problems import Unsupported, stacks_words

#: Sent along: they run on the harness's side, too.
op_faults, op_measures = (importlib.import_module(f"{__package__}.{name}") for name in ("op_faults", "op_measures"))


def describe_ops():
    """{"operators": [[name, has a fake]], "library", "device": words, "notes", "refused": [words]}. Raises Unsupported
    where none of the operators that are known here can be called."""
    import torch
    import vllm

    device = _device()
    kept, notes, refused, absent = [], [], [], []
    for one in _cases(device):
        found = op_case.found(one, device)
        if found is None:
            absent.append(one.name)
        elif words := _refusal(found):
            refused.append(f"{one.name}: {words}")
        else:
            kept.append([one.name, op_measures.has_fake(found.op)])
    if absent:
        notes.append(f"not registered here{_unloaded()}: {', '.join(absent)}")
    if not kept:
        raise Unsupported(f"no operator of this vLLM can be called on {device}: {'; '.join([*refused, *notes])}")
    library = f"vLLM {vllm.__version__}, torch {torch.__version__}, {device}"
    return {"operators": kept, "library": library, "notes": notes, "refused": refused, "device": device}


def _unloaded():
    """Why vLLM's compiled libraries are not there, if one of them does not load."""
    for path in sorted(Path(importlib.import_module("vllm").__path__[0]).glob("_C*.so")):
        try:
            importlib.import_module(f"vllm.{path.name.partition('.')[0]}")
        except Exception as error:
            return f" ({path.name} does not load: {stacks_words(error)})"
    return ""


def _device():
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _cases(device):
    """Registered as they are imported."""
    import vllm._custom_ops  # noqa: F401

    return [*(op_cases_cpu if device == "cpu" else op_cases_gpu).CASES, *op_cases_any.CASES]


def _refusal(op):
    """What one call at each batch raises, in words; nothing where it runs."""
    import torch

    try:
        for batch in op.batches:
            op.op(*op.arguments(batch, 0))
            if _device() == "cuda":
                torch.cuda.synchronize()
    except Exception as error:
        return stacks_words(error)
    return ""


#: By name and fault.
_HELD: dict = {}


def _held(name, fault):
    """An operator; with a fault of op_faults planted in it if one is named."""
    if (name, fault) not in _HELD:
        device = _device()
        [one] = [one for one in _cases(device) if one.name == name]
        clean = op_case.found(one, device)
        _HELD[name, fault] = op_faults.planted(clean, getattr(op_faults, fault)) if fault else clean
    return _HELD[name, fault]


def measure_op(method, name, fault, arguments):
    """One question of op_protocol.JudgedOp; `has_fake` is asked of what is planted, too."""
    op = _held(name, fault)
    if method == "has_fake":
        return op_measures.has_fake(op.op)
    answer = getattr(op_measures, method)(op, *arguments)
    return [list(one) if isinstance(one, tuple) else one for one in answer] if isinstance(answer, list) else answer
