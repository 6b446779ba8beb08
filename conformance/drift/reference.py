"""What vLLM does, derived from its sources: shard dimensions, the order of W_UK and W_UV, the softmax scale, MTP.

Nothing here is typed in but names; each value comes with the place it was read from. A version that does it elsewhere
or otherwise makes the value not-found, never a guess.
"""

from __future__ import annotations

import ast
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from conformance.drift import geometry
from conformance.drift.finding import Evidence, NotFound
from conformance.drift.locate.arithmetic import evaluate
from conformance.drift.locate.checkout import Checkout
from conformance.drift.locate.python import Function, PythonSource, called, key_text

MODEL = "model_executor/models/deepseek_v2.py"
MTP = "model_executor/models/deepseek_mtp.py"
LINEAR = "model_executor/layers/linear.py"
MLA_FOLDER = "model_executor/layers"
V1_FOLDER = "v1/attention"


class Value(NamedTuple):
    value: Any
    evidence: list[Evidence]


class Reference:
    """Lazily derived facts. Every property raises NotFound where the source does not hold it as expected."""

    def __init__(self, root: Path) -> None:
        self.checkout = Checkout(root)
        self.prefix = "vllm/" if self.checkout.has(f"vllm/{MODEL}") else ""

    @property
    def is_vllm(self) -> bool:
        return self.checkout.has(self.prefix + MODEL)

    def source(self, path: str) -> PythonSource:
        return PythonSource.of(self.checkout, self.prefix + path)

    @cached_property
    def model(self) -> PythonSource:
        return self.source(MODEL)

    @cached_property
    def mtp(self) -> PythonSource:
        return self.source(MTP)

    def kinds(self, class_name: str, attribute: str, source: PythonSource | None = None) -> Value:
        """The classes of the layer that CLASS builds as self.ATTRIBUTE (["RowParallelLinear"]), by every branch."""
        source = source or self.model
        scope = source.class_(class_name)
        built = [node.value for node in source.assignments(f"self.{attribute}", scope)]
        calls = [node for node in built if isinstance(node, ast.Call)]
        names = {name for call in calls for name in self._classes(source, call.func, scope)} - {"PPMissingLayer"}
        if not names:
            raise NotFound("anchor-absent", f"{source.path}: {class_name} builds no self.{attribute}")
        return Value(sorted(names), [source.evidence(calls[0])])

    def _classes(self, source: PythonSource, node: ast.expr, scope: ast.AST) -> list[str]:
        """Class names behind what is called: itself, or what the local name may hold."""
        match node:
            case ast.IfExp():
                return [*self._classes(source, node.body, scope), *self._classes(source, node.orelse, scope)]
            case ast.Name(id=name) if assigned := source.assignments(name, scope):
                return [n for a in assigned if a.value is not None for n in self._classes(source, a.value, scope)]
        return [ast.unparse(node).split(".")[-1]]

    def shard(self, class_name: str, attribute: str, source: PythonSource | None = None) -> Value:
        """The dimension of the weight that is split over ranks: 0, 1, or None where it is replicated."""
        kinds = self.kinds(class_name, attribute, source)
        dimensions = {self._dimension(kind) for kind in kinds.value}
        if len(dimensions) > 1:
            raise NotFound("ambiguous", f"{class_name}.{attribute} may be any of {kinds.value}")
        return Value(dimensions.pop(), kinds.evidence)

    def _dimension(self, kind: str) -> int | None:
        """By what the class divides by the TP size: its output size is dimension 0, its input size dimension 1."""
        if "Embedding" in kind or "LMHead" in kind:
            return 0  # both split the vocabulary, which is the weight's first dimension
        source = self.linear
        for candidate in (kind, *self._bases(kind)):
            if candidate == "ReplicatedLinear":
                return None
            for name, dimension in (("output_size_per_partition", 0), ("input_size_per_partition", 1)):
                for assigned in self._own_assignments(source, candidate, f"self.{name}"):
                    if any(called(c) == "divide" for c in ast.walk(assigned) if isinstance(c, ast.Call)):
                        return dimension
        raise NotFound("anchor-absent", f"{source.path}: {kind} divides neither its input nor its output size")

    @staticmethod
    def _own_assignments(source: PythonSource, class_name: str, target: str) -> list[ast.AST]:
        try:
            return list(source.assignments(target, source.class_(class_name)))
        except NotFound:
            return []

    @cached_property
    def linear(self) -> PythonSource:
        return self.source(LINEAR)

    def _bases(self, kind: str) -> list[str]:
        for source in (self.linear, self.model):
            try:
                found = source.class_(kind)
            except NotFound:
                continue
            bases = [ast.unparse(base).split(".")[-1] for base in found.bases]
            return [name for base in bases for name in (base, *self._bases(base))]
        return []

    @cached_property
    def shards(self) -> dict[str, Value]:
        """Shard dimension by checkpoint name, for the names that MPK's rules speak of."""
        attention, mlp = "DeepseekV2MLAAttention", "DeepseekV2MLP"
        found = {
            "self_attn.q_b_proj": self.shard(attention, "q_b_proj"),
            "self_attn.o_proj": self.shard(attention, "o_proj"),
            "mlp.gate_up_proj": self.shard(mlp, "gate_up_proj"),
            "mlp.down_proj": self.shard(mlp, "down_proj"),
            "mlp.shared_experts.down_proj": self.shard(mlp, "down_proj"),
            "mlp.shared_experts.gate_proj": self.shard(mlp, "gate_up_proj"),
            "mlp.shared_experts.up_proj": self.shard(mlp, "gate_up_proj"),
            "self_attn.kv_a_proj_with_mqa": self.shard(attention, "kv_a_proj_with_mqa"),
            "self_attn.q_a_proj": self.fused_down,
            "model.embed_tokens": self.shard("DeepseekV2Model", "embed_tokens"),
            "lm_head": self.shard("DeepseekV2ForCausalLM", "lm_head"),
            "shared_head.head": self.shard("SharedHead", "head", self.mtp),
            "eh_proj": self.eh_replicated,
        }
        # Experts: gate and up rows, and down columns, as in the dense MLP, behind the expert dimension.
        found["mlp.experts.w13"] = Value(found["mlp.gate_up_proj"].value + 1, found["mlp.gate_up_proj"].evidence)
        found["mlp.experts.w2"] = Value(found["mlp.down_proj"].value + 1, found["mlp.down_proj"].evidence)
        return found

    @cached_property
    def fused_down(self) -> Value:
        """q_a_proj: a part of fused_qkv_a_proj, whose class replicates it (disable_tp) although it is column-wise."""
        kind = self.kinds("DeepseekV2MLAAttention", "fused_qkv_a_proj")
        where = self.model.class_(kind.value[0])
        for keyword in (k for c in ast.walk(where) if isinstance(c, ast.Call) for k in c.keywords):
            if keyword.arg == "disable_tp" and ast.unparse(keyword.value) == "True":
                return Value(None, [*kind.evidence, self.model.evidence(keyword.value)])
        return Value(self._dimension(kind.value[0]), kind.evidence)

    @cached_property
    def eh_replicated(self) -> Value:
        call = self.mtp.assigned("self.eh_proj")
        name = called(call) if isinstance(call, ast.Call) else ""
        if name in {"Linear", "ReplicatedLinear"}:
            return Value(None, [self.mtp.evidence(call)])
        return Value(self._dimension(name), [self.mtp.evidence(call)])

    @cached_property
    def row_parallel(self) -> Value:
        """Checkpoint names whose products are partial sums, to be reduced over ranks exactly once."""
        names = [n for n, v in self.shards.items() if v.value == (2 if ".experts.w" in n else 1)]
        forward = self.linear.method("forward", "RowParallelLinear")
        reduced = self.linear.calls("tensor_model_parallel_all_reduce", forward)
        if not reduced:
            raise NotFound("anchor-absent", f"{self.linear.path}: RowParallelLinear.forward reduces nothing")
        return Value(sorted(names), [self.linear.evidence(reduced[0])])

    @cached_property
    def kv_b_order(self) -> Value:
        """How a head's kv_b_proj rows are split: ["W_UK", "W_UV"] with their sizes' names."""
        for path in self._mla_files():
            try:
                source = PythonSource.of(self.checkout, path)
            except NotFound:
                continue
            for node in ast.walk(source.tree):
                match node:
                    case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Call() as call) if len(names) == 2:
                        order = [ast.unparse(name) for name in names]
                        split = _split_of(source, call)
                        if sorted(order) == ["W_UK", "W_UV"] and split is not None:
                            assert isinstance(split.args[0], ast.List)
                            sizes = [ast.unparse(size).split(".")[-1] for size in split.args[0].elts]
                            return Value(list(zip(order, sizes, strict=True)), [source.evidence(split)])
        raise NotFound("anchor-absent", f"{self.prefix}{MLA_FOLDER}: no split of kv_b_proj into W_UK and W_UV")

    def _mla_files(self) -> list[str]:
        folders = (f"{self.prefix}{MLA_FOLDER}", f"{self.prefix}{V1_FOLDER}", f"{self.prefix}attention")
        files = {path for folder in folders for path in self.checkout.under(folder, ".py") if "mla" in path}
        return sorted(path for path in files if "W_UV" in self.checkout.file(path).text)

    @cached_property
    def softmax_scale(self) -> Value:
        """qk_head_dim ** -0.5 * mscale**2, each factor as the attention class writes it."""
        scope = self.model.method("__init__", "DeepseekV2MLAAttention")
        names: dict[str, Any] = {
            "self.qk_head_dim": geometry.QK_NOPE_HEAD_DIM + geometry.QK_ROPE_HEAD_DIM,
            "mscale": self._mscale(),
        }
        assigned = self.model.assignments("self.scaling", scope)
        if not assigned:
            raise NotFound("anchor-absent", f"{self.model.path}: DeepseekV2MLAAttention sets no self.scaling")
        for node in assigned:
            assert node.value is not None
            names["self.scaling"] = evaluate(node.value, names)
        return Value(names["self.scaling"], [self.model.evidence(node) for node in assigned])

    def _mscale(self) -> float:
        function = self.model.function("yarn_get_mscale")
        names = {function.args.args[0].arg: geometry.ROPE_FACTOR, function.args.args[1].arg: geometry.MSCALE_ALL_DIM}
        for node in function.body:
            if isinstance(node, ast.If) and evaluate(node.test, names):
                node = node.body[0]
            if isinstance(node, ast.Return) and node.value is not None:
                return float(evaluate(node.value, names))
        raise NotFound("unparsed", f"{self.model.path}: yarn_get_mscale returns nothing that can be evaluated")

    @cached_property
    def rotates(self) -> Value:
        """Where the rope part of q and k is rotated before attention."""
        for path in self._rotating_files():
            source = PythonSource.of(self.checkout, path)
            for function in source.functions():
                calls = source.calls("rotary_emb", function)
                if function.name == "forward" and calls:
                    return Value(True, [source.evidence(calls[0])])
        raise NotFound("anchor-absent", f"{self.prefix}{MLA_FOLDER}: no forward that calls rotary_emb")

    def _rotating_files(self) -> list[str]:
        found = [self.prefix + path for path in (f"{MLA_FOLDER}/mla.py", MODEL)]
        return [path for path in found if self.checkout.has(path)]

    @cached_property
    def hidden_after_norm(self) -> Value:
        """The target returns its hidden states after the final norm: what the first draft step gets."""
        forward = self.model.method("forward", "DeepseekV2Model")
        normed = [n for n in ast.walk(forward) if isinstance(n, ast.Assign) and _calls_norm(n.value)]
        if not normed:
            return Value(False, [self.model.evidence(forward)])
        name = ast.unparse(normed[-1].targets[0]).strip("()").split(",")[0]
        returned = [
            n
            for n in ast.walk(forward)
            if isinstance(n, ast.Return) and n.value is not None and n.lineno > normed[-1].lineno
        ]
        after = any(ast.unparse(n.value) == name for n in returned if n.value)
        return Value(after, [self.model.evidence(node) for node in [normed[-1], *returned[-1:]]])

    @cached_property
    def recycles_after_norm(self) -> Value:
        """Whether a draft step hands its successor the hidden state after shared_head's norm."""
        forward = self._predictor_forward()
        returned = [n for n in ast.walk(forward) if isinstance(n, ast.Return) and n.value is not None]
        after = any(isinstance(n.value, ast.Tuple) and "shared_head" in ast.unparse(n.value) for n in returned)
        return Value(after, [self.mtp.evidence(n) for n in returned[-1:]])

    @cached_property
    def eh_order(self) -> Value:
        """The order in which eh_proj's columns meet the embedding and the hidden state: ["embed", "hidden"]."""
        forward = self._predictor_forward()
        for call in self.mtp.calls("eh_proj", forward):
            for inner in ast.walk(call):
                if isinstance(inner, ast.Call) and called(inner) == "cat" and isinstance(inner.args[0], ast.List):
                    parts = [ast.unparse(part) for part in inner.args[0].elts]
                    order = ["embed" if "embed" in part else "hidden" for part in parts]
                    return Value(order, [self.mtp.evidence(inner)])
        raise NotFound("anchor-absent", f"{self.mtp.path}: no eh_proj(cat([...])) in the predictor's forward")

    def _predictor_forward(self) -> Function:
        return self.mtp.method("forward", "DeepSeekMultiTokenPredictorLayer")

    @cached_property
    def layers_of_mtp(self) -> Value:
        """The draft's layers start at num_hidden_layers: MPK's absorption must cover that index too."""
        node = self.mtp.assigned("self.mtp_start_layer_idx")
        return Value(ast.unparse(node).split(".")[-1], [self.mtp.evidence(node)])

    @cached_property
    def gate_and_up(self) -> Value:
        """Gate and up are split over ranks separately, then joined: each is a shard of its own of gate_up_proj."""
        for node in ast.walk(self.model.tree):
            match node:
                case ast.Tuple(elts=[ast.Constant(value="gate_up_proj"), shard, ast.Constant(value=0)]):
                    if key_text(shard) == "gate_proj":
                        return Value(True, [self.model.evidence(node)])
        raise NotFound("anchor-absent", f"{self.model.path}: no stacked mapping of gate_proj into gate_up_proj")


def _calls_norm(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func) == "self.norm"


def _split_of(source: PythonSource, call: ast.Call) -> ast.Call | None:
    """The `.split([a, b])` that a call is, or that the function of this file which it calls returns."""
    if called(call) == "split":
        return call if call.args and isinstance(call.args[0], ast.List) and len(call.args[0].elts) == 2 else None
    found = [f for f in source.functions() if f.name == called(call)]
    returned = [n.value for f in found for n in ast.walk(f) if isinstance(n, ast.Return)]
    splits = [
        _split_of(source, value) for value in returned if isinstance(value, ast.Call) and called(value) == "split"
    ]
    return splits[0] if len(splits) == 1 else None
