"""llm-d's policies, with its scorers and filters."""
