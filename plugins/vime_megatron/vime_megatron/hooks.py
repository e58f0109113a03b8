"""Registration only; implementations are imported when chosen."""
