"""`epp doctor`: does a running deployment have what the picker needs, and can its policy pay here."""
