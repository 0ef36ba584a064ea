"""A site's rows, read in blocks of bounded size from any container."""
