"""Faults by the layer whose claims must catch them, a file each: `FAULTS`."""
