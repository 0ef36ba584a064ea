"""Show results as people read them: tables and plots."""
