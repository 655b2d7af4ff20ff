"""The pure core of time: which promises are due, and when a recurrence comes next."""
