"""The stack object (a kernel library: it neither plans nor loads): the FlashInfer of this interpreter on the first GPU.

It runs in the harness's own process, since it shares the GPU's memory with the references: a device error fails the
claim that met it, and every claim after it.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from conformance.errors import StackMissing
from conformance.stacks.protocols import StackInfo

if TYPE_CHECKING:
    from conformance.stacks.flashinfer.moe import FlashInferMoe


class FlashInferStack:
    name = "flashinfer"

    def info(self) -> StackInfo:
        """Raises StackMissing without FlashInfer or without a GPU."""
        import sys

        found = _version()
        try:
            import torch
        except ImportError as error:
            raise StackMissing(f"torch is not importable in {sys.executable}: {error}") from None
        if not torch.cuda.is_available():
            raise StackMissing("flashinfer's kernels need a CUDA GPU, and torch sees none here")
        major, minor = torch.cuda.get_device_capability(0)
        return StackInfo(
            name=self.name,
            subject=self.name,
            version=found,
            python=sys.executable,
            identity={"torch": str(torch.__version__), "gpu": torch.cuda.get_device_name(0)},
            backends=["flashinfer_cutlass"],
            capabilities=["moe"],
            notes=[f"capability {major}.{minor}, CUDA {torch.version.cuda}"],
        )

    def moe(self) -> FlashInferMoe:
        from conformance.stacks.flashinfer.moe import FlashInferMoe

        return FlashInferMoe()

    def close(self) -> None:
        pass


def _version() -> str:
    try:
        return version("flashinfer-python")
    except PackageNotFoundError:
        pass
    try:
        import flashinfer
    except Exception as error:
        raise StackMissing(
            f"flashinfer is not importable: {type(error).__name__}: {error}; pip install flashinfer-python"
        ) from None
    return str(getattr(flashinfer, "__version__", "unknown"))
