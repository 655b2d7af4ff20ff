"""The `report` job: how messages flow, as one HTML page and as JSON."""
