"""Engines carry questions to sites and bring back the answers; they contain no mathematics."""
