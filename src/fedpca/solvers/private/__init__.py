"""Principal components with differential privacy."""
