"""The rules, one file a pillar. Order here is the order of the report."""

from __future__ import annotations

from conformance.drift.finding import Rule


def all_rules() -> list[Rule]:
    """Every rule, by id."""
    from conformance.drift.rules import builder, device, kernels, runtime, weights

    found = [*weights.RULES, *builder.RULES, *kernels.RULES, *device.RULES, *runtime.RULES]
    return sorted(found, key=lambda rule: ("WBKR".index(rule.id[0]), rule.id))
