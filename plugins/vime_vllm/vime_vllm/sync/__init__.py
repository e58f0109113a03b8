"""Sync strategies and their counterparts inside vLLM."""
