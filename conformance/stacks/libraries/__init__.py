"""Quantisers of libraries that may live in another interpreter: each in a worker, reached by its name as a stack."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conformance.stacks.libraries.stack import LibraryStack
    from conformance.stacks.protocols import StackOptions


def torchao(options: StackOptions) -> LibraryStack:
    return _open("torchao", "torchao", options)


def compressed_tensors(options: StackOptions) -> LibraryStack:
    return _open("compressed-tensors", "compressed_tensors", options)


def ml_dtypes(options: StackOptions) -> LibraryStack:
    return _open("ml-dtypes", "ml_dtypes", options)


def _open(name: str, library: str, options: StackOptions) -> LibraryStack:
    from conformance.stacks.libraries.stack import LibraryStack

    return LibraryStack(name, library, options)
