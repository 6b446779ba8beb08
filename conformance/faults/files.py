"""Faults in what a checkpoint's headers say, as bad conversions and uploads leave them; and in what is loaded of it."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from conformance.checkpoint.folder import Files
from conformance.checkpoint.header import Entry
from conformance.faults.seams import Load, LoaderFault

FilesFault = Callable[[Files], Files]


def _changed(files: Files, entries: dict[str, Entry]) -> Files:
    return msgspec.structs.replace(files, entries=entries)


def without(pattern: str) -> FilesFault:
    """The tensors whose whole name fits the pattern are not there."""

    def fault(files: Files) -> Files:
        kept = {name: entry for name, entry in files.entries.items() if not re.fullmatch(pattern, name)}
        assert len(kept) < len(files.entries), f"nothing fits {pattern}"
        return _changed(files, kept)

    return fault


def renamed(pattern: str, new: str) -> FilesFault:
    """Names are substituted as `re.sub` does."""

    def fault(files: Files) -> Files:
        entries = {re.sub(pattern, new, name): entry for name, entry in files.entries.items()}
        assert entries.keys() != files.entries.keys(), f"nothing fits {pattern}"
        return _changed(files, entries)

    return fault


def changed(pattern: str, change: Callable[[Entry], Entry]) -> FilesFault:
    """The entries of the fitting names are other ones."""

    def fault(files: Files) -> Files:
        entries = {n: change(e) if re.fullmatch(pattern, n) else e for n, e in files.entries.items()}
        assert entries != files.entries, f"nothing fits {pattern}"
        return _changed(files, entries)

    return fault


def _transposed(entry: Entry) -> Entry:
    return entry._replace(shape=entry.shape[::-1])


def _unpacked(entry: Entry) -> Entry:
    """Rows of two elements a byte, said to be one: as many bytes in another shape."""
    return entry._replace(shape=(entry.shape[0] // 2, entry.shape[1] * 2))


def _negative_zero_lost(load: Load) -> None:
    """As a conversion through numbers would: 0x8 codes (-0) come out as 0x0. Only real files and luck have many."""
    if load.parameter == "w13_weight":
        for high in (0x0F, 0xF0):
            nibble = load.part & high
            load.part[nibble == (0x88 & high)] &= 0xFF ^ high


missing_tensor = without(r"layers\.1\.attn\.attn_sink")
missing_draft = without(r"mtp\..*")
missing_indexer = without(r"layers\.1\.attn\.indexer\..*")
missing_scale = without(r"layers\.2\.ffn\.experts\.3\.w2\.scale")
converted_names = renamed(r"^(layers\.0\.attn\..*)\.scale$", r"\1.weight_scale_inv")
routing_of_another_layer = renamed(r"^layers\.0\.ffn\.gate\.tid2eid$", "layers.0.ffn.gate.bias")
unsigned_codes = changed(r"layers\.2\.ffn\.experts\.0\.w1\.weight", lambda entry: entry._replace(dtype="U8"))
scales_as_bytes = changed(r".*\.attn\.wkv\.scale", lambda entry: entry._replace(dtype="U8"))
routes_as_floats = changed(r".*\.tid2eid", lambda entry: entry._replace(dtype="F64"))
transposed = changed(r"layers\.2\.attn\.wo_a\.weight", _transposed)
misshapen_experts = changed(r"mtp\.0\.ffn\.experts\.\d+\.w2\.weight", _unpacked)
negative_zero_lost = LoaderFault(after=_negative_zero_lost)
