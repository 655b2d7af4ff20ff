"""`waterclock cluster`: a look at the nodes that work together."""
