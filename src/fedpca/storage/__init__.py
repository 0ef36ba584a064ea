"""Files that are written atomically and checked when read."""
