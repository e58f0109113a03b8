"""vLLM rollouts behind vllm-router for vime, with weight synchronisation."""
