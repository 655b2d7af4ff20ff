"""The pure core of time: which scheduled messages are due, and when a recurrence comes next."""
