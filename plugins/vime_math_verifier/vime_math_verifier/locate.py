r"""Where in a response the answer is: the text after the last `Answer:`, or the last `\boxed{}`."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vime_math_verifier.number import is_dress
from vime_math_verifier.retraction import NEAR_CHARS, is_denied_before, is_open_after, is_open_before
from vime_math_verifier.thinking import without_thinking

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_RESPONSE_CHARS = 200_000
"""Only so much of the end of a response is read."""

MAX_ANSWER_CHARS = 1_000
"""A longer answer line or box is not an answer."""

MAX_DRESS_LINES = 4
r"""Lines such as `\[` or `**` that may stand between `Answer:` and the answer."""

MARKER = re.compile(r"(?<![A-Za-z])answer[\s*_`$}]{0,8}[:：]", re.IGNORECASE)  # noqa: RUF001
SPECIAL_TOKEN = re.compile(
    r"<[|｜][A-Za-z0-9_▁｜-]{1,40}[|｜]>|</?(?:s|eos|bos|pad|unk|answer)>"  # noqa: RUF001
    r"|<(?:end|start)_of_turn>|\[/?INST\]|<0x0A>",
    re.IGNORECASE,
)
BOX = "\\boxed"
_JOINED_BOXES = re.compile(r"\\boxed\s{0,3}\{[^{}]{0,200}\}[\s$]{0,6}(?:[,;/&]|and|or|,\s{0,3}(?:and|or))[\s$]{0,6}$")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A text that may be the answer, and what surrounds it."""

    text: str
    after: str
    """The rest of the response."""
    doubt: str = ""
    """Why the surroundings leave open whether it is the answer; empty when they do not."""


def find_candidates(response: str, *, boxed_fallback: bool) -> Iterator[Candidate]:
    """The texts that may be the answer, the most binding first; at most two."""
    text = SPECIAL_TOKEN.sub("\n", without_thinking(response)[-MAX_RESPONSE_CHARS:])
    line, box_start = "", 0
    marker = _last_marker(text)
    if marker:
        line, box_start = _answer_line(text, marker.end())
        prefix = text[max(0, marker.start() - NEAR_CHARS) : marker.start()].rpartition("\n")[2]
        yield Candidate(line, text[box_start:], "denied before it is given" if is_denied_before(prefix) else "")
    # With a number on the answer line the policy has answered: a box elsewhere does not replace it.
    if boxed_fallback and not any("0" <= char <= "9" for char in line):
        box = _last_box(text, box_start)
        if box is not None:
            yield box


def _last_marker(text: str) -> re.Match[str] | None:
    """The last match of `MARKER`, looked for from the end."""
    lower = text.lower()
    if len(lower) != len(text):  # some letters become two
        return next(iter(deque(MARKER.finditer(text), maxlen=1)), None)
    position = lower.rfind("answer")
    while position >= 0:
        marker = MARKER.match(text, position)
        if marker:
            return marker
        position = lower.rfind("answer", 0, position)
    return None


def _answer_line(text: str, start: int) -> tuple[str, int]:
    """The first line from `start` on that is more than dress, and where it ends."""
    for _ in range(MAX_DRESS_LINES + 1):
        newline = text.find("\n", start)
        end = len(text) if newline < 0 else newline
        line = text[start : min(end, start + MAX_ANSWER_CHARS + 1)]
        start = end + 1
        stripped = line.strip()
        if stripped and (stripped.isalnum() or not is_dress(line)):
            return line, end
    return "", start


def _last_box(text: str, start: int) -> Candidate | None:
    r"""What is inside the last `\boxed{}` at or after `start`, with balanced braces."""
    begin = text.rfind(BOX, start)
    if begin < 0:
        return None
    opening = begin + len(BOX)
    rest = text[opening : opening + MAX_ANSWER_CHARS]
    content = rest.lstrip()
    depth = 0
    for index, char in enumerate(content):
        depth += (char == "{") - (char == "}")
        if depth == 0:
            if char != "}":
                return None
            end = opening + len(rest) - len(content) + index + 1
            before = text[max(start, begin - MAX_ANSWER_CHARS) : begin].rpartition("\n")[2]
            suffix = text[end : end + NEAR_CHARS].partition("\n")[0]
            is_open = is_open_before(before) or is_open_after(suffix) or _JOINED_BOXES.search(before)
            return Candidate(content[1:index], text[end:], "denied or not alone" if is_open else "")
    return None
