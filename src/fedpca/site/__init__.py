"""Everything that happens at a site: its rows, its memory, its policy and its own log of answers."""
