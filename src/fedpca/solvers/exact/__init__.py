"""Exact solvers: their components equal those of the pooled rows."""
