"""What the driving code reports: `kind` names the harness's exception for it. Anything else is an AdapterError."""


class Missing(Exception):
    """A toolchain or package is not installed here; the message says what to install."""

    kind = "StackMissing"


class Unsupported(Exception):
    """The installed sources do not know this target."""

    kind = "NotSupported"


class Unfit(Exception):
    """The installed sources are not as this harness knows them, or the machine failed."""

    kind = "AdapterError"
