"""Engines carry encoded questions to sites and encoded answers back, and know nothing else."""
