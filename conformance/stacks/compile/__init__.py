"""Kernels compiled for GPUs that are not there: the protocol, and the toolchains behind it."""
