"""Which endpoint holds which prefix: hashed blocks, the index over them, state slots."""
