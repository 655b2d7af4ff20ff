"""`waterclock up --processes N`: all cores of a machine, by one address."""
