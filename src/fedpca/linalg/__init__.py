"""Matrix routines that know nothing about sites or messages."""
