"""Bytes of routed experts against the files: what is compared, and what a difference is called."""

from __future__ import annotations

import pytest

from conformance.checkpoint import folder, routed
from conformance.checkpoint.reader import Reader
from conformance.context import Context
from conformance.errors import NotSupported, UsageError
from conformance.faults import loader as faults
from conformance.faults.seams import FaultyLoader
from conformance.gate.settings import Settings, resolve
from conformance.stacks.reference import open_stack


def _context(checkpoint, fault=None) -> Context:
    run = resolve(Settings(emulate="sm120", checkpoint=str(checkpoint), checkpoint_bytes=True))
    stack = open_stack(run.stack_options)
    loader = stack.loader()
    return Context(run.target, stack.planner(), FaultyLoader(loader, fault) if fault else loader, files=run.files)


def test_every_expert_of_every_layer_and_draft(checkpoint):
    seen = routed.verify(_context(checkpoint))
    assert not seen.wrong and len(seen.names) == len(set(seen.names)) == 6 * 4 * 4
    assert "mtp.0.ffn.experts.3.w2.scale" in seen.names


def test_a_difference_names_rank_tensor_file_and_byte(checkpoint):
    seen = routed.verify(_context(checkpoint, faults.unit_blind("w2_weight")), most_wrong=1)
    wrong = seen.wrong[0]
    assert (wrong.rank, wrong.name, wrong.row, wrong.col) == (1, "layers.0.ffn.experts.0.w2.weight", 0, 0)
    data = (checkpoint / wrong.file).read_bytes()
    entry = folder.read(str(checkpoint)).entries[wrong.name]
    assert wrong.offset == entry.start + 48 and data[wrong.offset] == wrong.due
    assert wrong.got == data[entry.start + 64]


@pytest.mark.parametrize("fault", [faults.dropped_rank, faults.swapped, faults.reversed_ranks, faults.last_byte_lost])
def test_faults_are_seen(checkpoint, fault):
    assert routed.verify(_context(checkpoint, fault)).wrong


def test_without_mxfp4_experts_it_is_not_supported(checkpoint):
    files = folder.read(str(checkpoint))
    kept = {name: entry for name, entry in files.entries.items() if ".experts." not in name}
    with pytest.raises(NotSupported, match="no routed expert in MXFP4"):
        routed.experts(folder.Files(files.folder, files.geometry, kept, "", 0))


def test_a_file_that_shrinks_after_its_header_was_read(checkpoint):
    import torch

    files = folder.read(str(checkpoint))
    name, entry = max(files.entries.items(), key=lambda item: (item[1].file, item[1].stop))
    path = checkpoint / entry.file
    path.write_bytes(path.read_bytes()[:-3])
    target = torch.empty(entry.stop - entry.start, dtype=torch.uint8)
    with pytest.raises(UsageError, match=f"{path}: '{name}': the file ends before byte {entry.stop}"):
        Reader(checkpoint).into(target, name, entry)
