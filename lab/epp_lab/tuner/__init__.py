"""Learning weights from live traffic, safely: search, objective, evidence, a candidate's life. Pure."""
