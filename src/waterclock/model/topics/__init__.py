"""What is said about topics, and what follows from it."""
