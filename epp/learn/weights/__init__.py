"""`epp weights ...`: what is in force, pins, history, rollback."""
