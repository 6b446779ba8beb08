"""A library's quantiser as a stack of its own: it neither plans nor loads nor runs kernels."""

from __future__ import annotations

from conformance.stacks.libraries.quantizer import LibraryQuantizer, LibraryWorker
from conformance.stacks.protocols import StackInfo, StackOptions


class LibraryStack:
    """`library`: the worker's module of that name drives it."""

    def __init__(self, name: str, library: str, options: StackOptions) -> None:
        self.name = name
        self._worker = LibraryWorker(library, options)
        self._quantizer = LibraryQuantizer(library, "--python", self._worker)

    def info(self) -> StackInfo:
        """Starts the worker. Raises StackMissing with what to install, UsageError for an interpreter that is none."""
        told = self._quantizer.opened()
        return StackInfo(
            name=self.name,
            subject=self.name,
            version=told["version"],
            python=told["python"],
            identity=told["identity"],
            capabilities=["quant"],
            notes=[told["capabilities"]["runs"]],
        )

    def quantizer(self) -> LibraryQuantizer:
        return self._quantizer

    def close(self) -> None:
        self._worker.close()
