"""What comes from outside: the pool, scrapes, files, names, models."""
