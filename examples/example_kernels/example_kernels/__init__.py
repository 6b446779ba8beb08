"""A kernel library of two functions' worth, to show how one plugs in: `kernels` is the library, `conformance_stack` the
adapter."""
