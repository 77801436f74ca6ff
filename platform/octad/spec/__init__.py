"""Frozen, validated data. No I/O, no torch, no ray."""
