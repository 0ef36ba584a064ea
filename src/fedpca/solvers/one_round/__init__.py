"""Solvers that take one round of summaries and state how far off the result can be."""
