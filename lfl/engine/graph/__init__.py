"""The local step as a list of tensor operations: recorded, simplified, replayed, or compiled."""
