"""A tiny Qwen3 that forgets to carry learns to add by GRPO, on a CPU."""
