r"""Where in a response the answer is: the text after the last `Answer:`, or the last `\boxed{}`."""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING

from vime_math_verifier.number import is_dress

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_RESPONSE_CHARS = 200_000
"""Only so much of the end of a response is read."""

MAX_ANSWER_CHARS = 1_000
"""A longer answer line or box is not an answer."""

MAX_DRESS_LINES = 4
r"""Lines such as `\[` or `**` that may stand between `Answer:` and the answer."""

MARKER = re.compile(r"(?<![A-Za-z])answer[\s*_`$}]{0,8}[:：]", re.IGNORECASE)  # noqa: RUF001
SPECIAL_TOKEN = re.compile(r"<\|[A-Za-z0-9_▁｜-]{1,40}\|>|</?(?:s|eos|bos|pad|answer)>", re.IGNORECASE)  # noqa: RUF001
BOX = "\\boxed"


def find_candidates(response: str, *, boxed_fallback: bool) -> Iterator[str]:
    """The texts that may be the answer, the most binding first; at most two."""
    text = SPECIAL_TOKEN.sub("\n", response[-MAX_RESPONSE_CHARS:])
    line, box_start = "", 0
    last_marker = deque(MARKER.finditer(text), maxlen=1)
    if last_marker:
        line, box_start = _answer_line(text, last_marker[0].end())
        yield line
    # With a number on the answer line the policy has answered: a box elsewhere does not replace it.
    if boxed_fallback and not any("0" <= char <= "9" for char in line):
        box = _last_box(text, box_start)
        if box is not None:
            yield box


def _answer_line(text: str, start: int) -> tuple[str, int]:
    """The first line from `start` on that is more than dress, and where it ends."""
    for _ in range(MAX_DRESS_LINES + 1):
        newline = text.find("\n", start)
        end = len(text) if newline < 0 else newline
        line = text[start : min(end, start + MAX_ANSWER_CHARS + 1)]
        start = end + 1
        if line.strip() and not is_dress(line):
            return line, end
    return "", start


def _last_box(text: str, start: int) -> str | None:
    r"""What is inside the last `\boxed{}` at or after `start`, with balanced braces."""
    begin = text.rfind(BOX, start)
    if begin < 0:
        return None
    content = text[begin + len(BOX) : begin + len(BOX) + MAX_ANSWER_CHARS].lstrip()
    depth = 0
    for index, char in enumerate(content):
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return content[1:index] if char == "}" else None
    return None
