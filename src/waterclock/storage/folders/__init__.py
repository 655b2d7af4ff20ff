"""The door to the file system."""
