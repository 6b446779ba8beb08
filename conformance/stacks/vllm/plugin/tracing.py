"""What goes into and out of every attention and MoE block of one prompt, from rank 0, while FOLDER/on exists."""

import os

_KINDS = (".attn", ".ffn")


def install(folder):
    """A global forward hook, which looks at nothing while tracing is off. Eager mode alone."""
    from torch.nn.modules.module import register_module_forward_hook

    switch = os.path.join(folder, "on")  # noqa: PTH118

    def hook(module, arguments, output):
        prefix = getattr(module, "prefix", None)
        if not isinstance(prefix, str) or not prefix.endswith(_KINDS) or not os.path.exists(switch):  # noqa: PTH110
            return
        _write(folder, prefix, arguments, output)
        _tell(folder, module)

    register_module_forward_hook(hook)
    return "a forward hook writes down what goes into and out of each block, when asked"


def _tell(folder, module):
    """Which class of vLLM's multiplies the routed experts in here."""
    methods = [getattr(part, "quant_method", None) for part in module.modules()]
    names = {kernel.__name__ for kernel in (getattr(m, "experts_cls", None) for m in methods) if kernel is not None}
    if names:
        with open(os.path.join(folder, "experts.txt"), "w") as file:  # noqa: PTH118, PTH123
            file.write(", ".join(sorted(names)))


def _write(folder, prefix, arguments, output):
    import torch
    from safetensors.torch import save_file
    from vllm.distributed import get_tensor_model_parallel_rank

    if get_tensor_model_parallel_rank():
        return
    x = next((a for a in arguments if isinstance(a, torch.Tensor) and a.is_floating_point() and a.dim() == 2), None)
    target = os.path.join(folder, f"{prefix.removeprefix('model.')}.safetensors")  # noqa: PTH118
    if x is None or not isinstance(output, torch.Tensor) or os.path.exists(target):  # noqa: PTH110
        return
    save_file({"x": x.detach().cpu().clone(), "y": output.detach().cpu().clone()}, f"{target}.new")
    os.replace(f"{target}.new", target)  # noqa: PTH105
