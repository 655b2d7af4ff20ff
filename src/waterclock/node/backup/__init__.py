"""The cut of a node for a backup: of one that runs, or from the folder of one that does not."""
