"""Who answers for what: the node that leads a partition, is home of a group, writes the metadata.

One node alone answers for everything. Of several, each partition has a leader and each group a
home, and they move; None says that nobody answers for it at this moment, so ask again a little
later. All of it is a hint: the node that is named may have lost its place by the time it is asked,
and then says so (`NotLeader`).
"""

from typing import Protocol


class Places(Protocol):
    """Says which node answers for what; nodes are named as in `node.name`."""

    @property
    def me(self) -> str:
        """This node."""
        ...

    def meta_leader(self) -> str | None:
        """Return who makes topics, recurrences, writers and snapshots."""
        ...

    def group_home(self, group: str) -> str | None:
        """Return who serves the members of a group, of whatever topic."""
        ...

    def group_homes(self) -> tuple[str | None, ...]:
        """Return all that are home of some group; None among them: some have no home now."""
        ...

    def leader_of(self, topic: str, partition: int) -> str | None:
        """Return who appends to a partition, and fires its timers."""
        ...

    def replicas_of(self, topic: str, partition: int) -> tuple[str, ...]:
        """Return who has a copy, the leader among them; empty if nobody is known to have one."""
        ...


class AlonePlaces:
    """The places of a node that has no others: all are its own."""

    def __init__(self, me: str) -> None:
        self.me = me

    def __repr__(self) -> str:
        return f"<AlonePlaces {self.me}>"

    def meta_leader(self) -> str | None:
        return self.me

    def group_home(self, group: str) -> str | None:
        return self.me

    def group_homes(self) -> tuple[str | None, ...]:
        return (self.me,)

    def leader_of(self, topic: str, partition: int) -> str | None:
        return self.me

    def replicas_of(self, topic: str, partition: int) -> tuple[str, ...]:
        return (self.me,)
