"""Which message ids are known: fingerprints, a filter and sorted runs."""
