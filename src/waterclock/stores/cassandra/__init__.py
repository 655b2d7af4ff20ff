"""Streams stored in Cassandra."""
