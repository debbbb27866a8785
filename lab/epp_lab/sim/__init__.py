"""A replica's model, pure and in virtual time, and an HTTP face for it."""
