"""API bodies to one canonical prompt."""
