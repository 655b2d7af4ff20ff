"""The producer: messages accumulated in batches, sent over one stream, answered one by one."""
