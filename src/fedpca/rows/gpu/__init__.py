"""Multiply rows where they are: on a GPU, or in arrays of another library."""
