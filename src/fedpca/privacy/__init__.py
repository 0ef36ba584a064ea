"""Limit what leaves a site, with noise and with sums that reveal only the total."""
