"""A filter for vime: only groups that teach something."""
