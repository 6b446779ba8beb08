"""C++ that a parser does not take (`.cuh` files): a scanner that knows comments, strings and braces.

Comments are blanked and preprocessor conditions resolved with every offset kept, so a place in the scanned text is the
same place, and the same line, in the file.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import NamedTuple

from conformance.drift.finding import Evidence, NotFound
from conformance.drift.locate.arithmetic import evaluate_cxx
from conformance.drift.locate.checkout import Checkout, SourceFile

#: How these sources are compiled for the chain that is audited (Blackwell, offline serving).
DEFINES = {
    "MPK_TARGET_CC": 100,
    "MIRAGE_GRACE_BLACKWELL": 1,
    "MIRAGE_BACKEND_USE_CUDA": 1,
    "MODE_OFFLINE": 1,
    "USE_NVSHMEM": 1,
}
_TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
_CONSTANT = re.compile(r"\bconstexpr\s+(?:unsigned\s+)?(?:int|size_t|unsigned|uint32_t)\s+(\w+)\s*=\s*([^;]+);")
_CLOSING = {"{": "}", "(": ")", "[": "]"}


class Body(NamedTuple):
    """A function found by name: its parameter list and body, as offsets into the file."""

    name: str
    start: int
    parameters: str
    body: str
    body_start: int


class CxxSource:
    def __init__(self, file: SourceFile, defines: dict[str, int] | None = None) -> None:
        self.file = file
        self.path = file.path
        self.text = resolve_conditions(without_comments(file.text), DEFINES if defines is None else defines)

    @classmethod
    def of(cls, checkout: Checkout, path: str) -> CxxSource:
        return cls(checkout.file(path))

    @cached_property
    def _code(self) -> str:
        """The text with the insides of strings blanked too: braces and names in it are code."""
        return _TOKEN.sub(lambda m: m[0][0] + " " * (len(m[0]) - 2) + m[0][-1], self.text)

    def evidence(self, offset: int, qualname: str = "") -> Evidence:
        return self.file.evidence(self.file.line_of(offset), qualname)

    def enclosed(self, opening: int) -> tuple[int, int]:
        """Offsets just inside the bracket at `opening` and its partner. Raises NotFound(unparsed)."""
        stack: list[str] = []
        for at in range(opening, len(self._code)):
            char = self._code[at]
            if char in _CLOSING:
                stack.append(_CLOSING[char])
            elif char in ")}]":
                if not stack or stack.pop() != char:
                    break
                if not stack:
                    return opening + 1, at
        raise NotFound("unparsed", f"{self.path}:{self.file.line_of(opening)}: bracket is not closed where due")

    def functions(self, name: str) -> list[Body]:
        """Definitions (not declarations or calls) of `name`."""
        found = []
        for match in re.finditer(rf"\b{re.escape(name)}\s*\(", self._code):
            inside, end = self.enclosed(match.end() - 1)
            after = re.compile(r"\s*(?:const|noexcept|override)?\s*\{").match(self._code, end + 1)
            if after:
                body, body_end = self.enclosed(after.end() - 1)
                found.append(Body(name, match.start(), self.text[inside:end], self.text[body:body_end], body))
        return found

    def function(self, name: str) -> Body:
        """The one definition. Raises NotFound: anchor-absent, ambiguous."""
        found = self.functions(name)
        if not found:
            raise NotFound("anchor-absent", f"{self.path}: no definition of {name}")
        if len(found) > 1:
            raise NotFound("ambiguous", f"{self.path}: {name} is defined {len(found)} times, once was expected")
        return found[0]

    def constants(self) -> dict[str, int]:
        """constexpr integers that can be evaluated, in source order (a later one may use an earlier one)."""
        known: dict[str, int] = {}
        for match in _CONSTANT.finditer(self.text):
            try:
                known[match[1]] = evaluate_cxx(match[2], known)
            except NotFound:
                known.pop(match[1], None)
        return known

    def constant_place(self, name: str) -> int:
        for match in _CONSTANT.finditer(self.text):
            if match[1] == name:
                return match.start(1)
        raise NotFound("anchor-absent", f"{self.path}: no constexpr {name}")


def split_arguments(text: str) -> list[str]:
    """The arguments of a call, or the parameters of a definition, split at commas outside brackets."""
    parts, depth, current = [], 0, ""
    for at, char in enumerate(text):
        if char in "([{<" and not (char == "<" and text[at + 1 : at + 2] in {"<", "="}):
            depth += 1
        elif char in ")]}" or (char == ">" and text[at - 1 : at] != "-"):
            depth -= 1
        if char == "," and depth <= 0:
            parts.append(current.strip())
            current = ""
        else:
            current += char
    return [*parts, current.strip()] if current.strip() else parts


def without_comments(text: str) -> str:
    """The text with comments blanked, every offset kept."""
    return _TOKEN.sub(_blank_comment, text)


def _blank_comment(match: re.Match[str]) -> str:
    text = match[0]
    return re.sub(r"[^\n]", " ", text) if text[0] == "/" else text


def resolve_conditions(text: str, defines: dict[str, int]) -> str:
    """Blank the lines that `#if` and its kin leave out. A condition that cannot be evaluated keeps both branches."""
    kept: list[str] = []
    stack: list[list[bool]] = []  # [active, some branch of this #if was taken]
    for line in text.splitlines(keepends=True):
        directive = re.match(r"\s*#\s*(ifdef|ifndef|if|elif|else|endif)\b(.*)", line)
        active = all(level[0] for level in stack)
        if directive is None:
            kept.append(line if active else re.sub(r"[^\n]", " ", line))
            continue
        word, condition = directive[1], directive[2].strip()
        if word in {"if", "ifdef", "ifndef"}:
            holds = _holds(word, condition, defines)
            stack.append([holds is not False, holds is True])
        elif word == "elif" and stack:
            holds = _holds("if", condition, defines)
            stack[-1] = [not stack[-1][1] and holds is not False, stack[-1][1] or holds is True]
        elif word == "else" and stack:
            stack[-1] = [not stack[-1][1], True]
        elif word == "endif" and stack:
            stack.pop()
        kept.append(re.sub(r"[^\n]", " ", line))
    return "".join(kept)


def _holds(word: str, condition: str, defines: dict[str, int]) -> bool | None:
    """Whether a condition holds; None where it cannot be told."""
    if word == "ifdef":
        return condition in defines
    if word == "ifndef":
        return condition not in defines
    text = re.sub(r"defined\s*\(?\s*(\w+)\s*\)?", lambda m: str(int(m[1] in defines)), condition)
    names = {name: defines.get(name, 0) for name in re.findall(r"[A-Za-z_]\w*", text)}
    try:
        return bool(evaluate_cxx(text, names))
    except NotFound:
        return None
