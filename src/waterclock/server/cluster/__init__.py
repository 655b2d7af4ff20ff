"""The nodes of a cluster under a loop: connections to the others, timers, tasks."""
