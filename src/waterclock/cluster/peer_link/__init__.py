"""The link between two nodes: many requests at once over one connection, none in another's way."""
