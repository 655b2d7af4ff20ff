"""A worker of the dispatcher: it finds the leader, runs the handler and writes the results."""
