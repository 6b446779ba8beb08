"""Quantisers in another interpreter: tensors cross with their strides, what is missing is told, words are a
library's."""

from __future__ import annotations

import sys

import pytest
import torch

from conformance.errors import NotSupported, StackMissing, StackRefused, UsageError
from conformance.stacks import libraries
from conformance.stacks.libraries.quantizer import LibraryQuantizer, LibraryWorker
from conformance.stacks.libraries.worker import packing
from conformance.stacks.protocols import StackOptions


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.uint8, torch.int64])
def test_views_keep_their_memory(dtype):
    wide = torch.arange(80 * 24).view(80, 24).to(dtype)
    view = wide[5:79:2, 3:19]
    back = packing.unpacked(packing.packed([view, [view.T], 3, None, "word"]))
    assert torch.equal(back[0], view) and torch.equal(back[1][0], view.T)
    assert back[0].stride() == view.stride() and back[1][0].stride() == view.T.stride()
    assert back[2:] == [3, None, "word"]


def test_empty_tensors():
    back = packing.unpacked(packing.packed(torch.empty(0, 16, dtype=torch.bfloat16)))
    assert back.shape == (0, 16) and back.dtype == torch.bfloat16


_LIBRARY = """
__version__ = "9"
import torch
def unpack_uint4(p): return torch.stack((p & 15, p >> 4), -1).flatten(-2)
def pack_uint4(c):
    if c.shape[-1] % 2: raise ValueError("an even number was due")
    c += 0
    return c[..., 0::2] | c[..., 1::2] << 4
def f32_to_f4_unpacked(x):
    x.zero_()
    return x.to(torch.uint8)
"""


@pytest.fixture
def pretended(tmp_path, monkeypatch):
    """A torchao that has next to nothing, first on the worker's path."""
    folder = tmp_path / "torchao" / "prototype" / "mx_formats"
    folder.mkdir(parents=True)
    for parent in (tmp_path / "torchao", folder.parent, folder):
        (parent / "__init__.py").write_text('__version__ = "9"\n')
    (folder / "kernels.py").write_text(_LIBRARY)
    for name in ("mx_tensor", "nvfp4_tensor", "utils"):
        (folder / f"{name}.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    worker = LibraryWorker("torchao", StackOptions(library_python=sys.executable))
    yield LibraryQuantizer("torchao", "--python", worker)
    worker.close()


def test_a_library_in_a_worker(pretended):
    assert pretended.opened()["version"] == "9"
    assert "nvfp4.quantize" in pretended.capabilities().offers
    codes = torch.arange(16, dtype=torch.uint8).view(2, 8)
    assert torch.equal(pretended.unpack(pretended.pack(codes)), codes)
    with pytest.raises(StackRefused, match="ValueError: an even number was due"):
        pretended.pack(codes[:, :3].contiguous())
    with pytest.raises(NotSupported, match="no quantize_weight of this library is known"):
        pretended.quantize_weight("nvfp4", torch.ones(1, 2, 16))
    with pytest.raises(StackRefused, match="encode changed its input"):
        pretended.encode("e2m1", torch.ones(4))


def test_a_library_that_is_not_there(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "")
    stack = libraries.torchao(StackOptions(library_python=sys.executable))
    try:
        with pytest.raises(
            StackMissing, match=r"torchao is not importable in .*; pip install it there, or name another"
        ):
            stack.info()
    finally:
        stack.close()


def test_an_interpreter_that_is_none():
    with pytest.raises(UsageError, match="--python /nowhere/python: no such file"):
        libraries.ml_dtypes(StackOptions(library_python="/nowhere/python")).info()
