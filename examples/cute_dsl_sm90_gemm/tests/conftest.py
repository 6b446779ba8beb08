"""These tests run on an SM90 GPU with CuTe DSL; elsewhere nothing is collected, and pytest exits with 5."""

from importlib.util import find_spec


def _lacking() -> str:
    if not find_spec("cutlass"):
        return "CuTe DSL (nvidia-cutlass-dsl) is not installed"
    import torch

    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        return "there is no SM90 GPU (H100, H200)"
    return ""


collect_ignore_glob = ["test_*.py"] if _lacking() else []


def pytest_report_header() -> str:
    return f"nothing to run: {why}" if (why := _lacking()) else "on an SM90 GPU"
