"""One partition of a topic in a node: its log, its flush queue, and its readers."""
