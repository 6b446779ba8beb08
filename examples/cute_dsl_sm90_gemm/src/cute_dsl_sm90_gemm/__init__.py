"""A kernel library with one kernel, `kernel.py`, and the adapter through which the harness sees it, `adapter.py`."""
