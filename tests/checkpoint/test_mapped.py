"""Tensors of files as views into mapped windows: the bytes, how many windows there are, and files that change."""

from __future__ import annotations

import os

import pytest

from conformance.checkpoint import folder, mapped
from conformance.checkpoint.mapped import Mapped
from conformance.errors import UsageError


class _Layer:
    """Notes what is shared with it."""

    def __init__(self):
        self.shared = []

    def share(self, part):
        self.shared.append(part)

    def unshare(self, part):
        self.shared.remove(part)


@pytest.mark.parametrize("size", [mapped._WINDOW, 4096, 1])
def test_every_tensor_of_the_files_through_few_windows(checkpoint, monkeypatch, size):
    monkeypatch.setattr(mapped, "_WINDOW", size)
    layer, files = _Layer(), folder.read(str(checkpoint))
    held = Mapped(checkpoint, layer, windows=3)
    for name, entry in files.entries.items():
        with (checkpoint / entry.file).open("rb") as file:
            file.seek(entry.start)
            assert held.view(name, entry).numpy().tobytes() == file.read(entry.stop - entry.start)
        assert len(layer.shared) <= 3
    held.close()
    assert not layer.shared


def test_a_view_outlives_its_window_and_writing_to_it_changes_no_file(checkpoint):
    files = folder.read(str(checkpoint))
    name, entry = next(iter(files.entries.items()))
    before = (checkpoint / entry.file).read_bytes()
    held = Mapped(checkpoint, _Layer(), windows=1)
    view = held.view(name, entry)
    held.close()
    view.fill_(7)
    assert (checkpoint / entry.file).read_bytes() == before


@pytest.mark.parametrize("opened", [False, True])
def test_a_file_that_shrinks_after_its_header_was_read(checkpoint, opened):
    files = folder.read(str(checkpoint))
    name, entry = max(files.entries.items(), key=lambda item: (item[1].file, item[1].stop))
    path = checkpoint / entry.file
    held = Mapped(checkpoint, _Layer(), windows=1)
    if opened:
        held.view(name, entry)
    os.truncate(path, entry.stop - 3)
    with pytest.raises(UsageError, match=f"{path}: '{name}': the file ends before byte {entry.stop}"):
        held.view(name, entry)
