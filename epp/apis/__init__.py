"""API bodies to one canonical prompt; token counting; block hashing."""
