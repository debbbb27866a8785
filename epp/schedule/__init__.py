"""From a measured request to a decision: filter, policy, tie-break, reservation; records."""
