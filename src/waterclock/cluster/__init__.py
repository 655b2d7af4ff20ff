"""Many nodes: who is there, who owns what, and how they talk to each other."""
