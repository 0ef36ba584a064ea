"""Matrix routines that are independent of sites and messages."""
