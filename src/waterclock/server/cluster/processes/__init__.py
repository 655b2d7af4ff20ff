"""Processes of one machine as nodes of one cluster: their coordinator is the one that runs them."""
