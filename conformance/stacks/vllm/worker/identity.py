"""Which vLLM this is: version, file, commit, and the hashes of the files that decide plan, loading and MoE."""

import hashlib
import importlib
import sys
from pathlib import Path

from . import oracle, virtual_tp
from .problems import Unsupported
from .start import PATCHES

#: Relative to the vllm package; those that exist are hashed.
DECIDING = (
    "config/virtual_tp.py",
    "model_executor/virtual_tp.py",
    "model_executor/layers/fused_moe/routed_experts.py",
    "model_executor/layers/fused_moe/config.py",
    "model_executor/layers/fused_moe/oracle/mxfp4.py",
    "model_executor/layers/quantization/mxfp4.py",
    "model_executor/layers/linear.py",
    "model_executor/layers/vocab_parallel_embedding.py",
    "models/deepseek_v4/quant_config.py",
    "models/deepseek_v4/attention.py",
    "models/deepseek_v4/nvidia/model.py",
    "models/deepseek_v4/nvidia/flashinfer_sparse.py",
    "model_executor/layers/fused_moe/experts/marlin_moe.py",
    "model_executor/layers/quantization/utils/marlin_utils_fp4.py",
    "_C_stable_libtorch.abi3.so",
    "_moe_C_stable_libtorch.abi3.so",
)


def info():
    """Everything StackInfo wants, as simple types."""
    import torch
    import vllm

    package = Path(vllm.__file__).parent
    identity = {"file": str(vllm.__file__), "torch": str(torch.__version__)}
    if commit := checkout_commit(package.parent):
        identity["commit"] = commit
    elif built := built_commit():
        identity["built from"] = built
    for name in DECIDING:
        if (package / name).is_file():
            identity[f"sha256 {name}"] = hashlib.sha256((package / name).read_bytes()).hexdigest()
    padded = virtual_tp.exists()
    notes = [] if padded else ["this vLLM has no virtual-TP layer (no vllm.config.virtual_tp)"]
    try:
        backends = oracle.names()
    except Unsupported as error:
        backends = []
        notes.append(str(error))
    return {
        "version": str(vllm.__version__),
        "python": sys.executable,
        "identity": identity,
        "backends": backends,
        "capabilities": ["plan", "loader", "moe (marlin)", *(["virtual-tp"] if padded else [])],
        "notes": [*notes, *(f"patched: {patch}" for patch in PATCHES), *stood_in()],
    }


def stood_in():
    """Packages that are empty modules put in the place of missing ones, by whoever prepared this installation: such a
    module's class says so (`__stand_in__`)."""
    names = {name for name, module in list(sys.modules.items()) if vars(type(module)).get("__stand_in__")}
    top = sorted(name for name in names if name.rpartition(".")[0] not in names)
    return [f"empty modules stand in for what is not installed: {', '.join(top)}"] if top else []


def checkout_commit(root):
    """The commit that a checkout's HEAD names, read without git; None where there is no .git."""
    git = root / ".git"
    if git.is_file():  # a worktree
        git = (root / git.read_text().partition("gitdir:")[2].strip()).resolve()
    if not (git / "HEAD").is_file():
        return None
    head = (git / "HEAD").read_text().strip()
    if not head.startswith("ref:"):
        return head
    reference = head.partition("ref:")[2].strip()
    common = (git / (git / "commondir").read_text().strip()).resolve() if (git / "commondir").is_file() else git
    for folder in (git, common):
        if (folder / reference).is_file():
            return (folder / reference).read_text().strip()
    packed = common / "packed-refs"
    for line in packed.read_text().splitlines() if packed.is_file() else ():
        commit, _, name = line.partition(" ")
        if name == reference:
            return commit
    return None


def built_commit():
    """The commit that a wheel says it was built from, if it says so."""
    try:
        return getattr(importlib.import_module("vllm._version"), "__commit_id__", None)
    except ImportError:
        return None
