"""What `waterclock dispatch demo` plays: a Redis, a leader, a standby and workers as processes of
their own, devices that never stop sending, and somebody who kills one of them now and then.

`cast` holds the processes, `readings` is what devices send and what a worker makes of it, `chaos`
says who is killed when, `screen` shows each `scene`, `outcome` reckons up at the end, and
`performance` plays it all.
"""
