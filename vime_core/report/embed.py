"""Text that stands in a page as what it is, whatever it holds."""

from __future__ import annotations

import json
import re
from html import escape
from typing import Any

_UNSAFE = re.compile("[<>&\x7f-\x9f\u2028\u2029\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
"""What could end a script element or start a comment in it, and what UTF-8 or HTML has no place for."""

_NO_CHARACTER = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def embedded(value: Any) -> str:
    """Plain values as JSON that can stand in a script element of a UTF-8 page.

    Raises:
        ValueError: for nan and infinity, which JSON does not have.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def html_text(text: str) -> str:
    """Text as HTML; what a page cannot hold becomes U+FFFD."""
    return escape(_NO_CHARACTER.sub("\ufffd", text))
