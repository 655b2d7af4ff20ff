"""Commands about backups: taking one, restoring one."""
