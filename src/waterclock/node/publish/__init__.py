"""The way into topics: batches, single messages, and writers whose work counts once."""
