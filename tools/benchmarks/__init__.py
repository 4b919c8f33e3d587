"""How fast `lfl` is, what a round costs, and how that grows."""
