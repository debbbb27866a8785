"""The report: a document drawn as one self-contained page."""
