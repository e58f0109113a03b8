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
OPEN_PATHS = frozenset({"/health"})
"""vllm-router probes an engine's health without the key; the answer says no more than that it is alive."""


class RequireKey:
    """ASGI middleware: every request but a health probe must carry `Authorization: Bearer <key>`.

    Raises:
        KeyError: when the environment holds no key; an engine without a lock does not start.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._expected = f"Bearer {os.environ[KEY_VARIABLE]}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401 (a websocket is closed)."""
        if scope["type"] == "lifespan" or self._is_open(scope) or self._has_key(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": 401, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"this engine asks for the run's key\n"})

    @staticmethod
    def _is_open(scope: Scope) -> bool:
        return scope["type"] == "http" and scope["method"] == "GET" and scope["path"] in OPEN_PATHS

    def _has_key(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(given) == 1 and secrets.compare_digest(given[0], self._expected)
