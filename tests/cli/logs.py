"""Small logs on disk, and what a test does to their files behind everyone's back."""

from pathlib import Path

from waterclock.model.sections import LogConfig

SMALL = LogConfig(segment_bytes=4_096, preallocate_bytes=0)
"""Several segments of a few messages each, with no zeros behind them."""


def segments(folder: Path) -> list[Path]:
    """Return the segment files, in order."""
    return sorted(folder.glob("*.seg"))


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return the bytes and the time of every file, to prove that nothing was changed."""
    return {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in sorted(folder.iterdir())}


def flip(file: Path, position: int) -> None:
    """Flip one bit of a file."""
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(data)
