"""A rollout function for vime: a second try after a hint."""
