"""The leak lab: attack recorded runs to measure what they reveal."""
