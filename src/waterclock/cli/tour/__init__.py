"""The acts of the demo. Each does something real to a running node and returns what came of it.

Nothing here prints, and nothing is taken on trust: whatever is claimed was counted on the client's
side, from what the node acknowledged and what it delivered. `acts` holds what is claimed, and which
promise each number keeps or breaks; `narrator` tells it to people.
"""
