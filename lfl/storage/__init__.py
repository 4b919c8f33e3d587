"""All that outlives a round: rows of clients, checkpoint files, and the description of a run's settings."""
