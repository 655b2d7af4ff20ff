"""The client of streams: sending, receiving and following, over HTTP."""
