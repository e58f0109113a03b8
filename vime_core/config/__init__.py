"""Typed configuration: the schema, composition with Hydra, and checks."""
