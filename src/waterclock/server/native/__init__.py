"""The native protocol: what our own clients speak, over the port of HTTP."""
