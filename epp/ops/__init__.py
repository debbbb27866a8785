"""Commands of an operator: explain, feedback, records, doctor."""
