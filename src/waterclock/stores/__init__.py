"""Where stored streams are kept: our own log, or a database the user has already."""
