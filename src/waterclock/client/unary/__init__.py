"""Calls to a node without gRPC's library: for programs that ask once and are gone."""
