"""Streams stored in MySQL."""
