"""What pickers of one pool share: load, prefixes and what they learned, as each saw it."""
