"""Code that runs at a site: its answers, memory, policy, and log."""
