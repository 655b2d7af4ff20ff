"""The gRPC services of a node: broker, scheduler, administration, write registry and health."""
