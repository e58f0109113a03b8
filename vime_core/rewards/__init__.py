"""Scoring in killable worker processes."""
