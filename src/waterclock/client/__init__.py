"""The Python client: connect, publish, consume, plan and look after a node."""
