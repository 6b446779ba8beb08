"""What the driving code reports: `kind` names the harness's exception for it. Anything else is an AdapterError."""

import contextlib
import difflib
import os
import sys
import traceback

#: What a missing library, extension or file raises. A validation that says no raises none of these.
OF_THE_MACHINE = (ImportError, AttributeError, OSError, NameError)


class Refused(Exception):
    """vLLM's own validation or loader said no; the message is vLLM's."""

    kind = "StackRefused"
    #: Was it raised by the virtual-TP layer's own guard?
    by_guard = False


class Unsupported(Exception):
    """This vLLM lacks what was asked for."""

    kind = "NotSupported"


class Missing(Exception):
    """vLLM cannot be imported here."""

    kind = "StackMissing"


def unknown(what, name, known, most=20):
    """An Unsupported for a name that this vLLM does not have, with the nearest one that it has."""
    close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.0)
    hint = f"; nearest: {close[0]}" if close else ""
    listed = f" (known: {', '.join(known)})" if len(known) <= most else ""
    return Unsupported(f"this vLLM has no {what} {name!r}{hint}{listed}")


def cause_of(error):
    """The stack's own exception inside pydantic's ValidationError; the exception itself otherwise."""
    if type(error).__name__ == "ValidationError" and hasattr(error, "errors"):
        details = error.errors()
        cause = details[0].get("ctx", {}).get("error") if details else None
        if isinstance(cause, Exception):
            return cause
    return error


def stacks_words(error):
    """An exception as `Type: message` in one line, without pydantic's wrapping around the stack's own words."""
    inner = cause_of(error)
    if inner is error and type(error).__name__ == "ValidationError" and hasattr(error, "errors"):
        first = error.errors()[0]
        return f"{type(error).__name__}: {'.'.join(map(str, first['loc']))}: {' '.join(first['msg'].split())}"
    text = " ".join(str(inner).split())
    return f"{type(inner).__name__}: {text}" if text else f"{type(inner).__name__} (without a message)"


def raised_in(error, filename):
    """Did a file of that name take part in raising it?"""
    frames = traceback.extract_tb(cause_of(error).__traceback__)
    return any(frame.filename.endswith(filename) for frame in frames)


@contextlib.contextmanager
def refusals(doing):
    """What vLLM raises inside is its refusal, unless the device failed: that ends this process, and is a crash."""
    import torch

    try:
        yield
    except (Refused, Unsupported, Missing):
        raise
    except Exception as error:
        device = isinstance(error, getattr(torch, "AcceleratorError", ())) or "CUDA error" in str(error)
        if device and torch.cuda.is_available():
            traceback.print_exc()  # to the log
            sys.stderr.flush()
            os._exit(70)
        if isinstance(error, OF_THE_MACHINE):
            raise
        raise Refused(f"{doing}: {stacks_words(error)}") from error
