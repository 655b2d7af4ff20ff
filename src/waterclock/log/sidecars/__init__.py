"""What is derived from a segment and saved beside it."""
