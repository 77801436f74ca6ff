"""octad: rented eight-card nodes as one training service."""

__version__ = "0.1.0"
