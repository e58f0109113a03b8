"""Checks of a node: what a run would stumble over, found before it starts."""
