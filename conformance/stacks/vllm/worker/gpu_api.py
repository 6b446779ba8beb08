"""The calls of a worker that sees a GPU: vLLM as it is, its own platform, its own kernels."""

from . import sessions
from .problems import Missing, stacks_words


def _moe(name):
    def call(**arguments):
        try:
            import vllm  # noqa: F401
        except Exception as error:
            raise Missing(stacks_words(error)) from error
        from . import moe

        return getattr(moe, name)(**arguments)

    return call


CALLS = {
    "attach": sessions.attach,
    "detach": sessions.detach,
    "pin": sessions.pin,
    **{name: _moe(name) for name in ("open_moe", "fill_moe", "convert_moe", "run_moe", "close_moe")},
}
