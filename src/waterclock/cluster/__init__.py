"""Many nodes: who is there, who owns what, and what they say to each other. Pure."""
