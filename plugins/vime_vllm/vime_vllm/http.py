"""Calls to engines and router."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import aiohttp

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_CONNECTIONS = 4096
"""Open sockets of one client; further requests wait for one."""
MAX_DETAIL = 300
"""Characters of an error page that are worth telling."""


_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


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
        headers=_authorization(key),
        connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS),
    )


def get_status(url: str, key: str | None, *, deadline_s: float) -> int | None:
    """The status that a GET is answered with, or None when there is no answer. Goes past any proxy.

    Args:
        url: of this machine or of a node of the run.
        key: the run's, or None to ask without one.
        deadline_s: seconds to wait for each part of the answer.
    """
    request = urllib.request.Request(url, headers={} if key is None else _authorization(key))
    try:
        with _DIRECT.open(request, timeout=deadline_s) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return None


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
        # By itself aiohttp puts the end of a longer wait off to the next full second.
        timeout = aiohttp.ClientTimeout(total=deadline_s, ceil_threshold=math.inf)
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


def _authorization(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def _detail(text: str) -> str:
    """The message inside vLLM's error object, or the text itself, on one line."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        text = json.loads(text)["error"]["message"]
    return " ".join(str(text).split())[:MAX_DETAIL]
