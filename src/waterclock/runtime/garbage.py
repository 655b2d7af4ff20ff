"""How often the interpreter looks for garbage in cycles.

By default it does after 700 objects more than were freed. With a thousand calls under way each
burst of answers is that many, and each time everything young is walked through: a third of what a
message costs a pool of a thousand workers, and nothing is found, for none of it is in a cycle.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_MAX = 50_000
"""Objects more than were freed, before they are looked through; some 10 MB if all are garbage."""

_held = 0
_usual = (0, 0, 0)


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Look for cycles more rarely inside the block. A program that has set a greater number, or
    collects itself, is left alone; blocks may overlap, and the last puts back what was."""
    global _held, _usual
    if not _held:
        _usual = gc.get_threshold()
    _held += 1
    first, *others = gc.get_threshold()
    if 0 < first < YOUNG_MAX:
        gc.set_threshold(YOUNG_MAX, *others)
    try:
        yield
    finally:
        _held -= 1
        if not _held and gc.get_threshold()[0] == YOUNG_MAX:
            gc.set_threshold(*_usual)
