"""Prompts to scored groups."""
