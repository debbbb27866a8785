"""Routing policies: one file each, a formula over a snapshot."""
