"""Topics, groups, dead letters, replays and the node's health over HTTP and JSON."""
