"""Read single cells as rows."""
