"""Fitted models: how they treat new rows, and how they are saved and loaded."""
