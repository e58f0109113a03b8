"""Where metrics go besides metrics.jsonl."""
