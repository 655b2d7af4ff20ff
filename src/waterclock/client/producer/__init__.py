"""The producer: messages gathered into batches, sent over one stream, answered one by one."""
