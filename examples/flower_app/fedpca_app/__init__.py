"""Fit principal components inside a Flower deployment."""
