"""GRPO for vime: group-relative advantages and the clipped policy-gradient loss."""
