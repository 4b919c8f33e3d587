"""Progress on the screen and the summary of a run."""
