"""vime: plugin-based RL post-training. The core defines the contracts and runs the loop."""

from vime_core.plugins.hookspecs import hookimpl

__all__ = ["hookimpl"]
__version__ = "0.1.0"
