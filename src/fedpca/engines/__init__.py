"""Engines carry questions to sites and bring the answers back; they know no mathematics."""
