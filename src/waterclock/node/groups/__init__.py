"""Consumer groups on a running node: members' sessions, partitions they own, delivery to them."""
