"""The report of a run: one HTML page that opens anywhere, without a network."""
