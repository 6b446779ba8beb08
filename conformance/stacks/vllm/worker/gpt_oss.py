"""gpt-oss's routed experts: one tensor for all experts, rows of gate (W1) and up (W3) in turn, cut by the model's own
`load_weights`, which is given them by checkpoint name.

The harness hands over one expert's W1, W3 and W2 as it does for any model; here they are laid out as gpt-oss stores
them, and what it reads back are views of the loaded parameter: row 2 j as row j of the first half, row 2 j + 1 as row j
of the second.
"""

import contextlib

from . import building, experts, oracle, stubs
from .fake_platform import pretend
from .problems import Refused, Unsupported, stacks_words
from .routed import PARAMETERS
from .sessions import Session, sessions

#: Parameter -> the checkpoint's name for what it is loaded from.
NAMES = {
    "w13_weight": "model.layers.0.mlp.experts.gate_up_proj_blocks",
    "w13_weight_scale": "model.layers.0.mlp.experts.gate_up_proj_scales",
    "w2_weight": "model.layers.0.mlp.experts.down_proj_blocks",
    "w2_weight_scale": "model.layers.0.mlp.experts.down_proj_scales",
}
GROUP = 32
#: No vocabulary is looked at here: as little of it as TP16 can share.
_VOCABULARY = 1024


def open_experts(folder, tp, rank, backend, experts_built, capability, attention, force, attributes):
    """As `experts.open_experts`. Raises Refused, and Unsupported where this vLLM has no such model."""
    named = backend if backend in oracle.names() else "auto"
    config, notes, forced = experts.configuration(folder, tp, capability, named, attention, force)
    if forced:
        raise Refused(notes[0])

    def build(count):
        try:
            return building.build(config, tp, capability, backend, rank, 1, count, device="cpu", vocabulary=_VOCABULARY)
        except (ImportError, NotImplementedError, Unsupported) as error:
            raise Unsupported(f"the model cannot be built here: {stacks_words(error)}") from error
        except Exception as error:
            raise Refused(f"the model cannot be built: {stacks_words(error)}") from error

    model = build(experts_built)
    session = GptOss(model, config, attributes, (tp, rank, capability, experts_built))
    session.twin = lambda: _layer(build(1))
    layer = session.layer
    return {
        "session": sessions.add(session),
        "parameters": session.shapes(),
        "backend": oracle.candidates(backend)[0].name,
        "kernel_width": int(layer.intermediate_size_per_partition),
        "logical_width": None,
        "notes": [
            *notes,
            "gate and up rows lie in turn, as in the checkpoint; here they are shown as two halves",
            "all experts are one tensor: what is handed over is loaded when the parameter is read",
            stubs.NOTE.replace("torch's meta device", "the CPU"),
        ],
        "details": {"loader": f"{type(model).__module__}.{type(model).__qualname__}.load_weights"},
    }


def _layer(model):
    """The module that holds the first layer's routed experts."""
    name = next((n for n, _ in model.named_parameters() if n.endswith(PARAMETERS[0])), None)
    if name is None:
        raise Unsupported(f"{type(model).__name__} holds no {PARAMETERS[0]}: these are no MXFP4 experts")
    return model.get_submodule(name.rpartition(".")[0])


class GptOss(Session):
    """A model of one layer. `built`: (tp, rank, capability, experts)."""

    def __init__(self, model, config, attributes, built):
        import torch

        super().__init__(_layer(model), config, attributes)
        self.model, self.built = model, built
        text = config.model_config.hf_text_config
        hidden, inner, count = text.hidden_size, text.intermediate_size, built[3]
        sizes = {"w13": (2 * inner, hidden), "w2": (hidden, inner)}
        #: What the checkpoint holds, as the loader wants it: blocks (E, rows, groups, 16), scales (E, rows, groups).
        self.whole = {}
        for name in PARAMETERS:
            rows, columns = sizes[name.partition("_")[0]]
            shape = (count, rows, columns // GROUP) + (() if name.endswith("_scale") else (GROUP // 2,))
            self.whole[name] = torch.zeros(shape, dtype=torch.uint8)
        self.waiting = []

    def load(self, parameter, shard, expert, source):
        """Put it where the checkpoint has it; the loader is called once the parameter is looked at."""
        tensor = self.whole[parameter][expert].flatten(1)
        target = tensor if shard == "w2" else tensor[("w1", "w3").index(shard) :: 2]
        target.copy_(source)
        self.waiting = [name for name in self.waiting if name != parameter] + [parameter]

    def seen(self, name, data):
        """(halves, rows of a half, columns): row 2 j + h is row j of half h."""
        return data.view(-1, 2, data.shape[-1]).transpose(0, 1) if name.startswith("w13") else data

    def settle(self):
        """Let the model load what waits, in the order in which it came."""
        waiting, self.waiting = self.waiting, []
        for parameter in waiting:
            given = [(NAMES[parameter], self.whole[parameter])]
            try:
                with self._loading():
                    loaded = self.model.load_weights(iter(given))
            except (Exception, SystemExit) as error:
                raise Refused(f"{NAMES[parameter]}: {stacks_words(error)}") from error
            if not any(name.endswith(f".{parameter}") for name in loaded or ()):
                raise Refused(f"the loader reports that it did not load {NAMES[parameter]}")

    @contextlib.contextmanager
    def _loading(self):
        from vllm.config import set_current_vllm_config

        tp, rank, capability, count = self.built
        with (
            building.shortened(self.config, 1, count, draft=False, vocabulary=_VOCABULARY),
            stubs.standing_in(tp, rank),
            pretend(capability, cuda=False),
            set_current_vllm_config(self.config),
        ):
            yield
