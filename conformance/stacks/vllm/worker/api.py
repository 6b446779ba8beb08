"""The calls that the harness makes, by name. Nothing heavy is imported before `start`."""

from . import sessions
from .start import start


def info():
    from . import identity

    start()
    return identity.info()


def plan(**request):
    from . import planning

    start()
    return planning.plan(**request)


def open_experts(**request):
    from . import experts

    start()
    return experts.open_experts(**request)


CALLS = {
    "info": info,
    "plan": plan,
    "open_experts": open_experts,
    "attach": sessions.attach,
    "detach": sessions.detach,
    "fill": sessions.fill,
    "load": sessions.load,
    "read": sessions.read,
    "write": sessions.write,
    "initial": sessions.initial,
    "close": sessions.close,
}
