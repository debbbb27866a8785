"""Shared test tools, typed like production code."""
