"""Sidecars that learn from records: weights, reward models, capabilities."""
