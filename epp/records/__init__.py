"""Records of decisions and outcomes: their schema, writing, reading and verifying."""
