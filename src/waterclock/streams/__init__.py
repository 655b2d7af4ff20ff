"""Light streams, matched in memory: rings, positions, who waits, resume tokens. Pure."""
