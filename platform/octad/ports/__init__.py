"""The protocols that providers fill, and the folder registry."""
