"""Our own side of a comparison: a node in a process of its own, and clients for it."""
