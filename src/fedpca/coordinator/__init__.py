"""The coordinator's side: ask the sites, sum their answers, ask again, and record the run."""
