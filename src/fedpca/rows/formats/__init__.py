"""Read rows from files of every kind, and from databases."""
