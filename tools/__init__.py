"""Programs that write code of the project."""
