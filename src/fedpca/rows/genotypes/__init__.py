"""Read genotypes as rows, and multiply them as they are stored."""
