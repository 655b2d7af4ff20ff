"""The dispatcher's demo: a Redis, a leader, a standby and workers as processes of their own,
devices that never stop sending, and kills of a leader or a worker now and then.

`readings` is what devices send and what a worker makes of it, `chaos` plans the kills, `screen`
shows each `snapshot`, `outcome` counts at the end, and `run` does it all.
"""
