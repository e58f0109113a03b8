"""Hook specifications, entries, interfaces and the plugin manager."""
