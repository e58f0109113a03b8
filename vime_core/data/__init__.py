"""Where prompts come from, and how samples are packed and split."""
