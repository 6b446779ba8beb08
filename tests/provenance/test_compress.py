"""Runs of equal rows and columns against a comparison of neighbours, one by one, whatever is compared at a time."""

from __future__ import annotations

import pytest
import torch

from conformance.provenance import compress

_DTYPES = torch.uint8, torch.int16, torch.int32, torch.int64


def _starts(lines):
    return [0, *(i for i in range(1, len(lines)) if lines[i] != lines[i - 1])]


@pytest.mark.parametrize("at_once", [7, 64, 1 << 20])
def test_runs_are_those_of_neighbours_that_differ(monkeypatch, at_once):
    monkeypatch.setattr(compress, "_AT_ONCE", at_once)
    rng = torch.Generator().manual_seed(3)
    for number in range(400):
        rows, cols = (int(n) for n in torch.randint(1, 40, (2,), generator=rng))
        whole = torch.zeros(rows, cols, dtype=_DTYPES[number % 4])
        if number % 3:
            whole += torch.randint(0, 3, (rows, 1) if number % 3 == 1 else (1, cols), generator=rng).to(whole.dtype)
        if number % 5 == 0:
            whole[rows // 2, cols // 3] += 1
        cut = int(torch.randint(0, rows + 1, (), generator=rng))
        for found, lines in ((compress.EqualRows(), whole), (compress.EqualColumns(), whole.T)):
            for chunk in (whole[:cut], whole[cut:]):
                if len(chunk):
                    found.add(chunk)
            starts = _starts(lines.tolist())
            assert found.starts == starts
            assert all(torch.equal(line, lines[s]) for line, s in zip(found.lines, starts, strict=True))
