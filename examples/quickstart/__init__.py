"""A tiny Qwen3 learns by GRPO to add carefully, on a CPU."""
