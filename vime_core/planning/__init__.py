"""Memory and placement of a run, from numbers alone: no torch, no device, no weights."""
