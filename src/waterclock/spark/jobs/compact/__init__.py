"""The `compact` job: the latest message of each key, as a snapshot."""
