"""`waterclock up --nodes N`, a cluster on this machine; `waterclock cluster`, a look at one."""
