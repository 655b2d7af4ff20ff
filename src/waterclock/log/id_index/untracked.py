"""Where messages published with `allow_duplicate` are, by id.

Dedup neither checks nor remembers their ids, so nothing here is asked when a message is published.
Who cancels or moves a message by its id asks, and seldom: so there is no filter in front, and what
is sealed stays as it lies in its side-car. `pieces` is complete, and gives candidates only, as
`IdIndex` says of its own. Beyond a limit the oldest segments are dropped: what they know is in
their side-cars still.
"""

import numpy as np
import numpy.typing as npt

from waterclock.log.id_index.fingerprint import Fingerprints
from waterclock.log.id_index.runs import Entries, IdRuns


class UntrackedIds:
    """Fingerprints of ids that dedup does not know, and the offsets they were stored at."""

    def __init__(self) -> None:
        self._sealed: dict[int, Entries] = {}
        self._unsealed: dict[int, IdRuns] = {}
        self._dropped: set[int] = set()
        """Segments whose ids were too many."""

    def __len__(self) -> int:
        sealed = sum(map(len, self._sealed.values()))
        return sealed + sum(map(len, self._unsealed.values()))

    def load(self, base_offset: int, run: Entries) -> None:
        """Take these entries as those of a segment that gets no more."""
        self._unsealed.pop(base_offset, None)
        self._sealed[base_offset] = run

    def resume(self, base_offset: int, entries: Entries) -> None:
        """Add what a side-car knew of the active segment."""
        if len(entries):
            self._runs(base_offset).add_sorted(entries)

    def insert(self, base_offset: int, fps: Fingerprints, relative: npt.NDArray[np.uint64]) -> None:
        """Record ids of the active segment at these offsets, counted from its first."""
        self._runs(base_offset).add(fps, relative)

    def insert_one(self, base_offset: int, fp: int, relative: int) -> None:
        """Record one id of the active segment."""
        self._runs(base_offset).add_one(fp, relative)

    def runs(self, base_offset: int) -> list[Entries]:
        """Give sorted runs with all entries of an unsealed segment so far; they do not change."""
        runs = self._unsealed.get(base_offset)
        return [] if runs is None else runs.runs()

    def drop(self, base_offset: int) -> None:
        """Forget the ids of a segment that dedup does not know any more either."""
        self._forget(base_offset)
        self._dropped.discard(base_offset)

    def trim(self, ids_max: int, *, before: int) -> None:
        """Forget the ids of the oldest segments below an offset until at most so many are left."""
        excess = len(self) - ids_max
        for base in sorted({**self._sealed, **self._unsealed}):
            if excess <= 0 or base >= before:
                break
            count = self._forget(base)
            excess -= count
            if count:
                self._dropped.add(base)

    def has_dropped(self, base_offset: int) -> bool:
        """Tell whether the ids of a segment were forgotten because there were too many."""
        return base_offset in self._dropped

    def _forget(self, base_offset: int) -> int:
        """Forget the ids of a segment; return how many they were."""
        sealed = self._sealed.pop(base_offset, ())
        unsealed = self._unsealed.pop(base_offset, ())
        return len(sealed) + len(unsealed)

    def pieces(self) -> list[tuple[int, Entries]]:
        """Give sorted arrays that hold every entry, and their base; they do not change."""
        sealed = [*self._sealed.items()]
        return sealed + [(base, run) for base in self._unsealed for run in self.runs(base)]

    def _runs(self, base_offset: int) -> IdRuns:
        # Made at the first one: most partitions never see any.
        runs = self._unsealed.get(base_offset)
        if runs is None:
            runs = self._unsealed[base_offset] = IdRuns()
        return runs

    def __repr__(self) -> str:
        return f"<UntrackedIds {len(self)} ids>"
