"""vLLM's custom operators, measured in this process: which of the cases this vLLM has, and what each does."""

from . import op_case, op_cases_cpu, op_cases_gpu, op_cases_ir, op_faults, op_measures
from .problems import Unsupported, stacks_words


def describe_ops():
    """{"operators": [[name, has a fake]], "library": words, "notes": [words]}. Raises Unsupported where none of the
    operators that are known here can be called."""
    import torch
    import vllm

    device = _device()
    kept, notes, absent = [], [], []
    for one in _cases(device):
        found = op_case.found(one, device)
        if found is None:
            absent.append(one.name)
        elif words := _refusal(found):
            notes.append(f"{one.name}: not judged, this machine's call is refused: {words}")
        else:
            kept.append([one.name, op_measures.has_fake(found.op)])
    if absent:
        notes.append(f"not in this vLLM: {', '.join(absent)}")
    if not kept:
        raise Unsupported(f"no operator of this vLLM can be called on {device}: {'; '.join(notes)}")
    return {"operators": kept, "library": f"vLLM {vllm.__version__}, torch {torch.__version__}, {device}", "notes": notes}


def _device():
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _cases(device):
    """Registered as they are imported."""
    import vllm._custom_ops  # noqa: F401

    return [*(op_cases_cpu if device == "cpu" else op_cases_gpu).CASES, *op_cases_ir.CASES]


def _refusal(op):
    """What one call at each batch raises, in words; nothing where it runs."""
    try:
        for batch in op.batches:
            op.op(*op.arguments(batch, 0))
    except Exception as error:
        return stacks_words(error)
    return ""


_HELD = {}


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
    return [list(one) for one in answer] if isinstance(answer, list) else answer
