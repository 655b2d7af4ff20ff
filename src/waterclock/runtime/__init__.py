"""What every program of ours that runs until it is stopped stands on: nodes, parallel consumers,
dispatchers and their workers."""
