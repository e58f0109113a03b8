"""Runs to start from."""
