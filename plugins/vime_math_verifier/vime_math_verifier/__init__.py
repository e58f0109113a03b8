"""Verification of math answers for vime (DAPO answer contract)."""
