"""A node on the network: the gRPC and HTTP APIs, metrics, and a node as a process."""
