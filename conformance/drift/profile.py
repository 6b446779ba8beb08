"""Which design a checkout has, told from what it registers: expectations differ where designs legitimately do."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec


class Profile(msgspec.Struct, frozen=True):
    #: unabsorbed kernel: a prefill kernel over unabsorbed K and V is registered (its weights must then exist).
    #: unabsorbed prefill: the builder uses it. unified: one task for prefill and decode. mtp: a draft loop.
    features: tuple[str, ...]

    @classmethod
    def of(cls, task_names: Iterable[str], layers: Iterable[str]) -> Profile:
        tasks, called = set(task_names), set(layers)
        found = {
            "unabsorbed kernel": any(re.match(r"mla_prefill_tp\d", name) for name in tasks),
            "unabsorbed prefill": any(re.match(r"mla_prefill_tp\d", name) for name in called),
            "absorbed prefill": bool({"mla_prefill_layer", "mla_prefill_absorbed_layer"} & called),
            "unified": "mla_unified_layer" in called,
            "mtp": any(name.startswith("mtp_") for name in called),
        }
        return cls(tuple(sorted(name for name, present in found.items() if present)))

    def has(self, feature: str) -> bool:
        return feature in self.features
