"""vllm-router with its own lock on: `python -m vime_vllm.router_server <arguments of vllm-router>`.

The router can have every route, administration included, ask for a key that some URL accepts, but its command line has
no option for it. Here any engine is asked: the router itself holds no key.
"""

from __future__ import annotations

import sys

from vllm_router.launch_router import launch_router, parse_router_args

KEYED_PATH = "/version"
"""A route of every engine that answers 200 to whoever has the key, at once and whatever the engine does."""


def main() -> None:
    """Serve until told to stop."""
    arguments = parse_router_args(sys.argv[1:])
    # All attributes are handed to the router as keyword arguments; one that it does not know ends the start.
    arguments.api_key_validation_urls = [url + KEYED_PATH for url in arguments.worker_urls]
    launch_router(arguments)


if __name__ == "__main__":
    main()
