"""`waterclock log`: looking into a log on disk, and repairing it."""
