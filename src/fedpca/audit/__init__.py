"""The leak lab: measure by attacks what a run reveals."""
