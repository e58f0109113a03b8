"""Devices: the only place that knows device strings and visible-device variables."""
