"""A model of a real engine, from measurements."""
