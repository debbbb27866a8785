"""What llm-d's picker is told, understood: its flags, its plugin configuration, its words for refusals."""
