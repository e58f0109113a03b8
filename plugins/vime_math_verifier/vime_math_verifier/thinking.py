"""What of a response is meant for the reader: all but the thinking."""

from __future__ import annotations

import re

_TAG = re.compile(
    r"[<\[◁](?:(?P<close>/)?(?:think|thinking|thought|thoughts|reasoning|reflection)[>\]▷]|\|(?P<of>begin|end)_of_thought\|>)",
    re.IGNORECASE,
)

_WORDS = ("think", "thought", "reasoning", "reflection")
"""One of them is in every tag."""


def without_thinking(response: str) -> str:
    """The response without what lies between thinking tags.

    A closing tag without an opening one ends thinking that began with the response; thinking that is not closed goes
    on to the end.
    """
    lower = response.lower()
    if not any(word in lower for word in _WORDS):
        return response
    visible: list[str] = []
    start, is_thinking = 0, False
    for tag in _TAG.finditer(response):
        closes = bool(tag["close"]) or (tag["of"] or "").lower() == "end"
        if closes and not is_thinking:
            visible.clear()
        elif not closes and not is_thinking:
            visible.append(response[start : tag.start()])
        start, is_thinking = tag.end(), not closes
    if not is_thinking:
        visible.append(response[start:])
    return "\n".join(visible)
