"""What a node remembers of its own last hour and day."""
