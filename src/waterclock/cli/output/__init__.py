"""How the command line shows things: consoles, tables, messages, numbers."""
