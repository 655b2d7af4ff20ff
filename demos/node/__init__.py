"""The steps of the demo. Each does something real to a running node and returns what came of it.

No step prints, and nothing is taken on trust: each number was counted on the client's side, from
what the node acknowledged and what it delivered. `steps` holds the numbers, and says which
guarantee each keeps or breaks; `printer` prints them for people.
"""
