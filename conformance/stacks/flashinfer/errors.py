"""Whose fault an exception of FlashInfer is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from conformance.errors import StackCrashed, StackError, StackMissing, StackRefused


@contextmanager
def stack_errors(doing: str) -> Iterator[None]:
    """A device error is a crash of the stack, and files that its installation lacks are missing; what else FlashInfer
    raises is its refusal."""
    try:
        yield
    except StackError:
        raise
    except FileNotFoundError as error:
        raise StackMissing(
            f"{doing}: this FlashInfer is not whole, it lacks {error.filename}; "
            "pip install --force-reinstall --no-deps flashinfer-python"
        ) from error
    except Exception as error:
        words = f"{doing}: {type(error).__name__}: {' '.join(str(error).split())[:400]}"
        device = isinstance(error, torch.AcceleratorError) or "CUDA error" in str(error)
        raise (StackCrashed if device else StackRefused)(words) from error
