"""The shell around the cores: tasks, timers, files; no sockets of clients."""
