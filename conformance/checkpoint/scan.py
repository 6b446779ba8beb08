"""JSON read member by member, so that a hostile document costs no more memory than what of it is accepted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

from conformance.errors import UsageError, short

_SPACE = re.compile(r"[ \t\n\r]*")


class Scanner:
    """One document. `members` walks an object; each member's value has to be taken (`value`, `members`) in turn."""

    def __init__(self, data: bytes, where: str):
        self._where = where
        try:
            self._text = data.decode()
        except UnicodeDecodeError as error:
            raise self.wrong(f"no UTF-8 at byte {error.start}") from None
        self._at = 0

    def wrong(self, words: str, key: str | None = None) -> UsageError:
        """The one line: file, key (if there is one), and what is wrong."""
        return UsageError(f"{self._where}: {short(key, 200) + ': ' if key is not None else ''}{words}")

    def members(self, most: int, within: str | None = None) -> Iterator[str]:
        """Keys of the object that begins here, in order. Raises UsageError for a key that comes twice, for more than
        `most` of them, and where the text is no object."""
        self._take("{", "an object", within)
        seen: set[str] = set()
        if self._peek() == "}":
            self._at += 1
            return
        while True:
            if self._peek() != '"':
                raise self.wrong(f"a key in quotes was due at character {self._at}", within)
            try:
                key, self._at = scanstring(self._text, self._at + 1)
            except ValueError as error:
                raise self.wrong(f"no JSON: {error}", within) from None
            if not key.isprintable():
                raise self.wrong("a key of printable characters was due", key)
            if key in seen:
                raise self.wrong("comes twice in one object", key)
            seen.add(key)
            if len(seen) > most:
                raise self.wrong(f"more than {most} names; at most that many were due", key)
            self._take(":", "a colon", key)
            yield key
            if self._peek() == "}":
                self._at += 1
                return
            self._take(",", "a comma or the object's end", key)

    def value(self, key: str, most: int) -> Any:
        """The value that begins here, at most `most` characters long. No NaN, no key twice."""
        self._peek()
        piece = self._text[self._at : self._at + most]
        try:
            value, length = _DECODER.raw_decode(piece)
        except (ValueError, RecursionError) as error:
            length, why = len(piece), str(error) if isinstance(error, ValueError) else "nested too deeply"
            cut = self._at + length < len(self._text) and not isinstance(error, _Bad)
            raise self.wrong(f"no JSON, or longer than {most} characters" if cut else f"no JSON: {why}", key) from None
        if length == len(piece) and self._at + length < len(self._text):
            raise self.wrong(f"longer than {most} characters", key)
        self._at += length
        return value

    def end(self) -> None:
        """Raises UsageError if anything but white space follows."""
        if self._peek():
            raise self.wrong(f"something follows the object, at character {self._at}")

    def _peek(self) -> str:
        found = _SPACE.match(self._text, self._at)
        assert found is not None
        self._at = found.end()
        return self._text[self._at : self._at + 1]

    def _take(self, due: str, words: str, key: str | None) -> None:
        if (got := self._peek()) != due:
            got = short(got) if got else "the end"
            raise self.wrong(f"{words} was due at character {self._at}, got {got}", key)
        self._at += 1


class _Bad(ValueError):
    """JSON that the decoder would let pass."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(key for n, (key, _) in enumerate(pairs) if key in dict(pairs[:n]))
        raise _Bad(f"{short(twice)} comes twice")
    return found


def _constant(word: str) -> None:
    raise _Bad(f"{word} is no JSON number")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_constant)
