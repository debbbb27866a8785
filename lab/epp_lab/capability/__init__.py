"""From checked answers to the capability file."""
