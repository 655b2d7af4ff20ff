"""The node's memory of its own last day: what is counted, noted, and kept in a file."""
