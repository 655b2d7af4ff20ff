"""The fence: refuse whoever is older than the newest leader seen.

A leader that was paused does not know that another took over. Its frames and writes bear its epoch,
and everything that could be harmed by them remembers the highest one: workers here, the output and
the source in their scripts.
"""


class Fence:
    """Remembers the highest epoch; one for each worker, for all connections it ever has."""

    def __init__(self, epoch: int = 0) -> None:
        self.epoch = epoch

    def __repr__(self) -> str:
        return f"<Fence at {self.epoch}>"

    def lets(self, epoch: int) -> bool:
        """Say whether something of this epoch is accepted; if it is, nothing older is any more."""
        if epoch < self.epoch:
            return False
        self.epoch = epoch
        return True
