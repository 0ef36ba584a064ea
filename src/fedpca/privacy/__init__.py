"""What a run reveals, measured."""
