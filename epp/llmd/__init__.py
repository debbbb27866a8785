"""llm-d's command line, plugin configuration, errors and scores."""
