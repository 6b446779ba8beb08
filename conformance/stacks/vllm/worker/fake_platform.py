"""A platform that pretends: vLLM is imported on no device at all, and CUDA is claimed only around the calls that ask.

Installed before any other vLLM module. Modules bind the platform object when they are imported, so its class is
changed and never the binding. Imported as CUDA, vLLM would want its compiled extensions; as UNSPECIFIED it does not.
"""

import contextlib
import importlib
import sys
from types import ModuleType

_EXTENSIONS = ("vllm._C", "vllm._C_stable_libtorch", "vllm._moe_C", "vllm._moe_C_stable_libtorch")
NOTE = "platform replaced by a pretended one (no device; CUDA with the asked capability only around configuration)"


def install():
    """Put the pretended platform in place. Once a process, first of all."""
    import vllm.platforms as platforms
    from vllm.platforms.interface import Platform, PlatformEnum

    class Pretended(Platform):
        _enum = PlatformEnum.UNSPECIFIED
        device_name = "cpu"
        device_type = "cpu"
        dispatch_key = "CPU"
        dist_backend = "gloo"
        capability = None

        @classmethod
        def get_device_capability(cls, device_id=0):
            return cls.capability

        @classmethod
        def get_device_name(cls, device_id=0):
            return "pretended"

        @classmethod
        def support_deep_gemm(cls):
            """As vLLM's own CUDA platform answers for the pretended capability."""
            if cls._enum is not PlatformEnum.CUDA:
                return False
            return _cuda_platform().support_deep_gemm.__func__(cls)

        @classmethod
        def import_kernels(cls):
            """No compiled extension is needed to plan and to load."""

        @classmethod
        def check_and_update_config(cls, vllm_config):
            """Leaves the configuration as it was asked for."""

        def is_cuda_alike(self):
            return self._enum in (PlatformEnum.CUDA, PlatformEnum.ROCM)

    platforms._current_platform = Pretended()


def _cuda_platform():
    """vLLM's own CUDA platform class, to be asked about capabilities. Its module loads compiled extensions that this
    machine cannot load, or has not: nothing of them is called here."""
    absent = [name for name in _EXTENSIONS if name not in sys.modules]
    for name in absent:
        sys.modules[name] = ModuleType(name)
    try:
        return importlib.import_module("vllm.platforms.cuda").CudaPlatformBase
    finally:
        for name in absent:
            del sys.modules[name]


@contextlib.contextmanager
def pretend(capability, cuda=True):
    """Inside: CUDA of that capability, (major, minor). `cuda=False`: the capability without CUDA. None: neither."""
    import vllm.platforms as platforms
    from vllm.platforms.interface import DeviceCapability, PlatformEnum

    kind = type(platforms._current_platform)
    before = kind._enum, kind.capability
    kind.capability = DeviceCapability(*capability) if capability else None
    kind._enum = PlatformEnum.CUDA if cuda and capability else PlatformEnum.UNSPECIFIED
    try:
        yield
    finally:
        kind._enum, kind.capability = before
