"""Calls to engines and router."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import aiohttp

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_CONNECTIONS = 4096
"""Open sockets of one client; further requests wait for one."""
MAX_DETAIL = 300
"""Characters of an error page that are worth telling."""


class CallError(Exception):
    """A call was refused, broke off or was answered with an error; the message says which."""

    def __init__(self, message: str, status: int | None = None) -> None:
        """Args: what happened, and the status of the answer when there was one."""
        super().__init__(message)
        self.status = status

    @property
    def is_refusal(self) -> bool:
        """Whether the other side is well and refused the request."""
        return self.status is not None and self.status < 500


class CallTimeoutError(CallError):
    """A call was not answered in time."""


def new_session(key: str) -> aiohttp.ClientSession:
    """A session that shows the run's key; made and used inside one event loop."""
    return aiohttp.ClientSession(
        headers={"Authorization": f"Bearer {key}"},
        connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS),
    )


async def call(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    *,
    deadline_s: float,
    body: Any = None,
    query: Mapping[str, str] | None = None,
) -> Any:
    """The JSON that `url` answers with; None for an empty answer.

    Raises:
        CallTimeoutError: after `deadline_s` seconds.
        CallError: for an answer other than 2xx, a connection that is refused or breaks, an answer that is no JSON.
    """
    try:
        timeout = aiohttp.ClientTimeout(total=deadline_s)
        async with session.request(method, url, json=body, params=query, timeout=timeout) as response:
            text = await response.text()
    except asyncio.TimeoutError as error:
        raise CallTimeoutError(f"no answer to {method} {url} within {deadline_s:g} s") from error
    except aiohttp.ClientError as error:
        raise CallError(f"{method} {url}: {type(error).__name__}: {error}") from error
    if response.status // 100 != 2:
        raise CallError(f"{method} {url}: status {response.status}: {_detail(text)}", response.status)
    try:
        return json.loads(text) if text else None
    except ValueError as error:
        raise CallError(f"{method} {url}: the answer is no JSON: {_detail(text)}") from error


def _detail(text: str) -> str:
    """The message inside vLLM's error object, or the text itself, on one line."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        text = json.loads(text)["error"]["message"]
    return " ".join(str(text).split())[:MAX_DETAIL]
