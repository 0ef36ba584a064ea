"""Files that are written completely or not at all, and checked when read."""
