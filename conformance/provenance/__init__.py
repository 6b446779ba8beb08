"""Provenance: a checkpoint in which every byte knows its place shows where a loader put it."""
