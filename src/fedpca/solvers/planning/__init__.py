"""Plan what a fit will cost and reveal, before any site is asked."""
