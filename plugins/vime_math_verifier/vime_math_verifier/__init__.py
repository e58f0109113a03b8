"""Verification of math answers for vime (DAPO answer contract)."""

from vime_math_verifier.contract import verify

__all__ = ["verify"]
