"""Mechanisms that limit what leaves a site: sums that reveal only the sum, and noise."""
