"""Regular expressions that operators write, in RE2: linear time whatever the pattern, bounded memory.

The whole text must match. `.` matches a line break too: a device could otherwise put one into its topic and slip past a
rule that denies `secret/.*`. Compiled expressions are shared, by a bounded cache.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import re2  # type: ignore[import-untyped]  # the package brings no types

MAX_PATTERN_CHARACTERS = 1_024
MAX_MEMORY_BYTES = 1 << 20  # of one compiled expression and its automaton, held by RE2 itself


def _options() -> Any:
    options = re2.Options()
    options.dot_nl = True
    options.max_mem = MAX_MEMORY_BYTES
    options.never_capture = True
    options.log_errors = False
    return options


class Expression:
    __slots__ = ("pattern", "_regexp")

    def __init__(self, pattern: str) -> None:
        """Raises ValueError, with the reason, when the pattern cannot be used."""
        if len(pattern) > MAX_PATTERN_CHARACTERS:
            raise ValueError(f"is {len(pattern)} characters long; at most {MAX_PATTERN_CHARACTERS} are allowed")
        try:
            self._regexp = re2.compile(pattern.encode(), _options())
        except UnicodeEncodeError:
            raise ValueError("is not valid Unicode") from None
        except re2.error as error:
            raise ValueError(f"is not a regular expression of RE2: {_text_of(error)}") from None
        self.pattern = pattern

    def matches(self, text: bytes) -> bool:
        return self._regexp.fullmatch(text) is not None

    def may_match_after(self, prefix: bytes) -> bool:
        """False only if no text that begins with `prefix` can match."""
        try:
            least, most = self._regexp.possiblematchrange(len(prefix) + 8)  # cut there, so a little wider
        except re2.error:  # nothing is known of the texts that match
            return True
        return bool(most >= prefix and (least <= prefix or least.startswith(prefix)))


def _text_of(error: Exception) -> str:
    """RE2 tells its reason in bytes."""
    reason = error.args[0] if error.args else b"unknown reason"
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)


@lru_cache(maxsize=1_024)
def expression(pattern: str) -> Expression:
    """The compiled pattern, shared by all who use it. Raises ValueError, with the reason."""
    return Expression(pattern)
