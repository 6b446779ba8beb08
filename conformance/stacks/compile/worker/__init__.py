"""Runs in the stack's own interpreter: standard library, and what is installed there."""
