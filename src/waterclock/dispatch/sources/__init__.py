"""Where a dispatcher reads messages from: a Redis stream or a pub/sub channel."""
