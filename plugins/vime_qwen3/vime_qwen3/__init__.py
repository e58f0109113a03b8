"""The Qwen3 model family for vime."""
