"""Progress on the terminal, and the summary of a run."""
