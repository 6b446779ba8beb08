"""What the driving code reports: `kind` names the harness's exception for it. Anything else is an AdapterError."""


class Refused(Exception):
    """vLLM's own validation or loader said no; the message is vLLM's."""

    kind = "StackRefused"


class Unsupported(Exception):
    """This vLLM lacks what was asked for."""

    kind = "NotSupported"


class Missing(Exception):
    """vLLM cannot be imported here."""

    kind = "StackMissing"


def stacks_words(error):
    """An exception as `Type: message` in one line, without pydantic's wrapping around the stack's own words."""
    inner = error
    if type(error).__name__ == "ValidationError" and hasattr(error, "errors"):
        details = error.errors()
        cause = details[0].get("ctx", {}).get("error") if details else None
        if isinstance(cause, Exception):
            inner = cause
        elif details:
            return f"{type(error).__name__}: {'.'.join(map(str, details[0]['loc']))}: {details[0]['msg']}"
    text = " ".join(str(inner).split())
    return f"{type(inner).__name__}: {text}" if text else f"{type(inner).__name__} (without a message)"
