"""Policies of other systems and papers, to compare with."""
