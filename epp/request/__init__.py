"""A request's way, from its bytes to its outcome."""
