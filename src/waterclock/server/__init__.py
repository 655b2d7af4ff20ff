"""Requests in: gRPC for messages, HTTP for metrics and health, and the start and stop of a node."""
