"""Fitted models, which transform new rows and can be saved and loaded."""
