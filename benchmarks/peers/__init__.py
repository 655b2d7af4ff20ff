"""The systems we compare with: one file each, that finds or fetches, starts and talks to one.

A peer runs on this machine, on the same disk as our node, with the fastest of its settings that
promise as much: what is acknowledged is on the disk. Where it is fast only without that promise,
the same is measured again under a name that says so. A peer that cannot be had is `Absent`, with
the reason, and never guessed.
"""
