"""What can go wrong, by who is at fault. Each message is one line: what, where, expected, got, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UsageError(Exception):
    """The call is wrong: exit code 2, one line."""


class StackError(Exception):
    """Base of everything that a stack or its adapter reports."""


class StackMissing(StackError):
    """The stack is not installed or not importable; the message says what to install. INCOMPLETE."""


class NotSupported(StackError):
    """The stack lacks what the claim needs (no virtual-TP module, an unknown backend)."""


class StackRefused(StackError):
    """The stack's own validation said no; the message is the stack's."""


class Blocked(StackError):
    """What the claim needs could not be had (a layer that the stack refuses to build)."""


class StackCrashed(StackError):
    """The stack died or raised a device error inside this claim's call. NO-GO."""


class StackTimeout(StackError):
    """The stack did not answer within its time limit and was ended."""


class AdapterError(StackError):
    """Our adapter does not know how to drive this version; the message names what it tripped over."""


class UnfitShape(StackError):
    """A built parameter cannot hold what is due in it: measured, and wrong."""


_MOST_TEXT = 4000


def one_line(words: object) -> str:
    """Text of a stack on one line, escape codes and lone surrogates spelt out: it goes to terminals, JSON and XML.

    A message of megabytes is cut.
    """
    text = str(words)[:_MOST_TEXT]
    return printable(" ".join(text.split()))


def printable(line: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def short(value: object, most: int = 60) -> str:
    """`repr`, cut: what a user wrote may be megabytes, and a message is one line."""
    words = repr(value)
    return words if len(words) <= most else f"{words[: most - 4]} ..."


def named(kind: str, words: str) -> Exception:
    """The error that another process reported by name; an AdapterError for a name that is none."""
    made: type[Exception] = globals().get(kind, AdapterError)
    return made(words)


#: Names that an error lists.
_LISTED = 40


def nearest(word: str, known: Iterable[str], what: str) -> UsageError:
    """A UsageError for an unknown name, with the nearest known one: `unknown profile 'sm12'; nearest: sm120`."""
    names = sorted(known)
    matcher = difflib.SequenceMatcher(b=word.casefold())

    def likeness(name: str) -> float:
        matcher.set_seq1(name.casefold())
        return matcher.ratio()

    hint = f"; nearest: {max(names, key=likeness)}" if names else ""
    listed = ", ".join(names) if len(names) <= _LISTED else f"{len(names)} names"
    return UsageError(f"unknown {what} {short(word)}{hint} (known: {listed or 'none'})")
