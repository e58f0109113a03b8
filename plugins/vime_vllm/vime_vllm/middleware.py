"""The lock on an engine's door, put in front of every route with vLLM's `--middleware`.

vLLM's own `--api-key` guards the data routes only: without a key anyone could pause an engine or change its weights.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Any]]
    Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]

KEY_VARIABLE = "VIME_RUN_KEY"
"""Environment variable with the key; a command line is readable by every user of the machine."""
PROBED_PATH = "/health"
"""vllm-router asks for it without a key. The lock itself answers, and says no more than that something listens."""


class RequireKey:
    """ASGI middleware: only requests with `Authorization: Bearer <key>` reach the engine.

    Raises:
        KeyError: when the environment holds no key; an engine without a lock does not start.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._expected = f"Bearer {os.environ[KEY_VARIABLE]}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401 (a websocket is closed)."""
        if scope["type"] == "lifespan" or self._has_key(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["method"] == "GET" and scope["path"] == PROBED_PATH:
            await _answer(send, 200, b"")
        else:
            await _answer(send, 401, b"this engine asks for the run's key\n")

    def _has_key(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(given) == 1 and secrets.compare_digest(given[0], self._expected)


async def _answer(send: Send, status: int, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": body})
