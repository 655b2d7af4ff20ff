"""The Python client: connect, publish, consume, plan and look after a node."""

import os

# Read when gRPC is first imported. Otherwise it writes to stderr when a node goes away, which is no
# news: the client waits for it to come back, and says so where it cannot.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
