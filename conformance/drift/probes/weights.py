"""Runs the demo's weight code on tiny tensors: absorption against plain attention, and shards against the whole.

Only what is needed is lifted from the sources: the loops, the functions they call. bf16 is read as fp32 and quantisers
are left out, so that what differs, differs by formula.
"""

from __future__ import annotations

import ast
import builtins
import re
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

_LATENT, _ROPE, _HEADS, _Q_LORA, _HIDDEN = 512, 64, 2, 12, 10
#: Head sizes nope/v: equal, as in DeepSeek-V3 (a wrong half keeps its shape), and different.
_SIZES = ((16, 16), (24, 16))
_LAYER = 61


class _Torch:
    """torch, with bf16 and fp16 read as fp32."""

    bfloat16 = float16 = torch.float32

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def probe(request: dict[str, Any]) -> dict[str, Any]:
    root = Path(request["root"])
    demo = ast.parse((root / request["demo"]).read_text())
    names = _functions(ast.parse((root / request["convert"]).read_text()))
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor  # type: ignore[method-assign]
    loops = [n for n in ast.walk(demo) if isinstance(n, ast.For) and _calls(n, "absorb_kv_into_q")]
    absorbed = [_try(loop, lambda loop=loop, s=s: _absorbed(loop, names, *s)) for loop in loops for s in _SIZES]
    return {"absorbed": absorbed, "shards": _sharded(demo, names)}


def _functions(tree: ast.Module) -> dict[str, Any]:
    """A namespace with the functions and constants of a module, its imports left out."""
    kept = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.Assign | ast.AnnAssign)]
    names: dict[str, Any] = {"torch": _Torch(), "re": re, "__builtins__": builtins, "print": lambda *_, **__: None}
    names |= {name: getattr(typing, name) for name in ("Dict", "List", "Optional", "Tuple", "Any", "Union")}
    for node in kept:
        try:
            _run([node], names)
        except Exception:  # a constant made of something that is not here; who needs it will say so
            continue
    return names


def _run(nodes: list[ast.stmt], names: dict[str, Any]) -> None:
    exec(compile(ast.fix_missing_locations(ast.Module(nodes, [])), "<lifted>", "exec"), names)


def _calls(node: ast.AST, name: str) -> bool:
    return any(isinstance(n, ast.Call) and ast.unparse(n.func).split(".")[-1] == name for n in ast.walk(node))


def _try(loop: ast.For, compute: Any) -> dict[str, Any]:
    try:
        return {"line": loop.lineno, **compute()}
    except Exception as error:
        return {"line": loop.lineno, "error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}


def _absorbed(loop: ast.For, functions: dict[str, Any], nope: int, v: int) -> dict[str, Any]:
    """One absorption loop, run on one layer, compared with attention as it was before."""
    torch.manual_seed(20261129)
    attn = f"model.layers.{_LAYER}.self_attn."
    q = torch.randn(_HEADS * (nope + _ROPE), _Q_LORA)
    kv = torch.randn(_HEADS * (nope + v), _LATENT)
    o = torch.randn(_HIDDEN, _HEADS * v)
    weights = {f"{attn}q_b_proj.weight": q, f"{attn}kv_b_proj.weight": kv, f"{attn}o_proj.weight": o}
    after = {key: value.clone() for key, value in weights.items()}
    params = {
        "num_heads": _HEADS,
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": _ROPE,
        "kv_lora_rank": _LATENT,
        "v_head_dim": v,
        "q_lora_rank": _Q_LORA,
    }
    names = dict(functions)
    for called in {ast.unparse(n.func) for n in ast.walk(loop) if isinstance(n, ast.Call)}:
        if "quantize" in called and "dequantize" not in called and called.isidentifier():
            names[called] = lambda weight, *_, **__: (weight, torch.ones(()))
    names |= {"state_dict": after, "mp": params, "params": params, "num_layers": _LAYER, "world_size": 1, "rank": 0}
    names |= {"args": SimpleNamespace(mtp=1, ep_size=1), ast.unparse(loop.iter): [_LAYER]}
    _run([loop], names)
    rows = {
        name: after[f"{attn}{name}.weight"].shape[0] // _HEADS
        for name in ("q_b_proj", "q_b_nope", "q_b_pe")
        if f"{attn}{name}.weight" in after
    }
    found: dict[str, Any] = {"nope": nope, "v": v, "rows": rows}
    scores, output = _attention(q, kv, o, nope, v)
    try:
        absorbed_scores, absorbed_output = _absorbed_attention(
            after[f"{attn}q_b_proj.weight"].float(), after[f"{attn}o_proj.weight"].float(), o
        )
    except RuntimeError as error:  # shapes that do not multiply
        return {**found, "mismatch": " ".join(str(error).split())[:120]}
    return {
        **found,
        "score_error": _error(absorbed_scores, scores),
        "output_error": None if absorbed_output is None else _error(absorbed_output, output),
    }


def _inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Latent queries [T, q_lora], latent keys [S, latent], rope keys [S, rope]."""
    generator = torch.Generator().manual_seed(7)
    return (
        torch.randn(3, _Q_LORA, generator=generator),
        torch.randn(7, _LATENT, generator=generator),
        torch.randn(7, _ROPE, generator=generator),
    )


def _attention(q: torch.Tensor, kv: torch.Tensor, o: torch.Tensor, nope: int, v: int) -> tuple[Any, Any]:
    """Scores [H, T, S] and output [T, hidden] with K and V made in full."""
    x, latent, rope = _inputs()
    query = (x @ q.T).reshape(-1, _HEADS, nope + _ROPE)
    keys_values = (latent @ kv.T).reshape(-1, _HEADS, nope + v)
    scores = torch.einsum("thp,shp->hts", query[..., :nope], keys_values[..., :nope])
    scores = scores + torch.einsum("the,se->hts", query[..., nope:], rope)
    mixed = torch.einsum("hts,shv->thv", _weights(scores), keys_values[..., nope:])
    return scores, mixed.reshape(len(x), -1) @ o.T


def _absorbed_attention(q: torch.Tensor, o: torch.Tensor, before: torch.Tensor) -> tuple[Any, Any]:
    """The same over the latent; no output where o_proj was not folded (its V is then unabsorbed elsewhere)."""
    x, latent, rope = _inputs()
    query = (x @ q.T).reshape(len(x), _HEADS, _LATENT + _ROPE)
    scores = torch.einsum("thl,sl->hts", query[..., :_LATENT], latent)
    scores = scores + torch.einsum("the,se->hts", query[..., _LATENT:], rope)
    if o.shape == before.shape and torch.equal(o, before):
        return scores, None
    mixed = torch.einsum("hts,sl->thl", _weights(scores), latent)
    return scores, mixed.reshape(len(x), -1) @ o.T


def _weights(scores: torch.Tensor) -> torch.Tensor:
    return torch.softmax(scores / 300, dim=-1)  # scores of random weights are large: keep the softmax soft


def _error(actual: torch.Tensor, due: torch.Tensor) -> float:
    return float((actual - due).norm() / due.norm())


def _sharded(demo: ast.Module, functions: dict[str, Any]) -> dict[str, str]:
    """What is wrong with the shards that the demo cuts, by weight, for 2, 4 and 8 ranks."""
    loops = [
        n
        for n in ast.walk(demo)
        if isinstance(n, ast.For) and "state_dict" in ast.unparse(n.iter) and _calls(n, "shard_tensor")
    ]
    problems: dict[str, str] = {}
    for loop in loops:
        for ranks in (2, 4, 8):
            shards = [_cut(demo, loop, functions, rank, ranks) for rank in range(ranks)]
            for name, whole in _whole().items():
                key = f"model.layers.3.{name}.weight"
                problem = _reassembled(name, whole, [shard[key] for shard in shards])
                if problem:
                    problems.setdefault(name, problem)
    if not loops:
        raise LookupError("no loop over state_dict that calls shard_tensor")
    return problems


def _whole() -> dict[str, torch.Tensor]:
    """Tiny weights whose every element is its own number. w13: gates are even, ups odd."""

    def numbered(*shape: int) -> torch.Tensor:
        return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)

    gates = numbered(3, 16, 5) * 2
    return {
        "self_attn.q_b_proj": numbered(16, 6),
        "self_attn.o_proj": numbered(5, 32),
        "mlp.down_proj": numbered(5, 16),
        "mlp.shared_experts.gate_proj": numbered(16, 5),
        "mlp.shared_experts.up_proj": numbered(16, 5),
        "mlp.shared_experts.down_proj": numbered(5, 16),
        "mlp.experts.w13": torch.cat([gates, gates + 1], dim=1),
        "mlp.experts.w2": numbered(3, 5, 16),
    }


def _cut(demo: ast.Module, loop: ast.For, functions: dict[str, Any], rank: int, ranks: int) -> dict[str, Any]:
    state = {f"model.layers.3.{name}.weight": value.clone() for name, value in _whole().items()}
    names = dict(functions)
    names |= {"state_dict": state, "rank": rank, "world_size": ranks, "args": SimpleNamespace(mtp=1, ep_size=1)}
    names |= {"routed_tp_rank": rank, "routed_tp_size": ranks, "local_expert_start": 0, "local_num_experts": 3}
    needed = {n.id for n in ast.walk(loop) if isinstance(n, ast.Name)}
    for node in _definitions(demo, needed, before=loop.lineno):
        _run([node], names)
    _run([loop], names)
    return state


def _definitions(demo: ast.Module, needed: set[str], before: int) -> list[ast.stmt]:
    """Functions and lists of rules above the loop that it needs, and what they need in turn."""
    found: dict[int, ast.stmt] = {}
    wanted = set(needed)
    while True:
        more = [
            node
            for node in ast.walk(demo)
            if isinstance(node, ast.FunctionDef | ast.Assign)
            and node.lineno < before
            and node.lineno not in found
            and _defines(node) & wanted
            and not any(isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store) for n in ast.walk(node))
        ]
        more = [n for n in more if isinstance(n, ast.FunctionDef) or isinstance(n.value, ast.List | ast.ListComp)]
        if not more:
            return [found[line] for line in sorted(found)]
        for node in more:
            found[node.lineno] = node
            wanted |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _defines(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef):
        return {node.name}
    return {t.id for t in node.targets if isinstance(t, ast.Name)} if isinstance(node, ast.Assign) else set()


def _reassembled(name: str, whole: torch.Tensor, parts: list[torch.Tensor]) -> str:
    """Empty where the ranks' parts, put together as the reference cuts them, are the whole."""
    dim = {"w13": 1, "w2": 2}.get(name.rsplit(".", 1)[-1], 1 if name.endswith(("o_proj", "down_proj")) else 0)
    if name.endswith("w13"):
        if any(part.shape[1] % 2 for part in parts):
            return "a rank's part has an odd number of rows"
        halves = [torch.tensor_split(part, 2, dim=1) for part in parts]
        joined = torch.cat([gate for gate, _ in halves] + [up for _, up in halves], dim=1)
        words = "a rank's first half is not its part of the gates"
    else:
        joined = torch.cat(parts, dim=dim)
        words = f"the ranks' parts, joined on dimension {dim}, are not the whole"
    return "" if joined.shape == whole.shape and torch.equal(joined, whole) else words
