"""Regions as peers: summaries of each other, forwarded requests, and what these may do."""
