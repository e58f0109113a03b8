"""The observers of the core."""
