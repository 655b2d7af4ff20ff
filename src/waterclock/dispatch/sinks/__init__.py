"""Where a worker writes results to: Redis streams or a Waterclock topic."""
