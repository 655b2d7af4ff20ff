"""Streams stored in DynamoDB."""
