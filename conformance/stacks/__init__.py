"""Stacks: the systems under test, reached through the entry-point group `conformance.stacks`."""
