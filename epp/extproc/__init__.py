"""The ext_proc protocol as a pure state machine."""
