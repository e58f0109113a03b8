"""The version of vime-core, and of every distribution that is released with it."""

__version__ = "0.1.0"
