"""Present results as tables and plots."""
