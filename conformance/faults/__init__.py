"""Faults: known bugs, planted on purpose at a seam of any stack. The harness must catch every one."""
