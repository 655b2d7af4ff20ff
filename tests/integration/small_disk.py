"""A disk of a few MiB, in a mount namespace of its own, that outlives the nodes on it.

It takes no privileges where the kernel lets users have namespaces. A process that does nothing
holds the namespace; nodes enter it, and the test reaches the files through that process.
"""

import os
from pathlib import Path
from subprocess import PIPE, Popen

MOUNT = "/mnt"
ROOT = Path(__file__).parents[2]


class SmallDisk:
    """Use as a context; `prefix` runs a command on the disk, mounted at MOUNT."""

    def __init__(self, size_mib: int) -> None:
        self._size_mib = size_mib
        self._holder: Popen[bytes] | None = None

    def __enter__(self) -> "SmallDisk":
        script = (
            f"mount -t tmpfs -o size={self._size_mib}m tmpfs {MOUNT} && echo ready && read -r line"
        )
        self._holder = Popen(
            ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script],
            stdin=PIPE,
            stdout=PIPE,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"ready\n", "no namespaces here"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._holder is not None
        self._holder.communicate()

    @property
    def prefix(self) -> tuple[str, ...]:
        """What to put before a command, to have it see the disk."""
        assert self._holder is not None
        return "nsenter", f"--target={self._holder.pid}", "--user", "--mount", f"--wd={ROOT}", "--"

    @property
    def path(self) -> Path:
        """The disk as seen from outside."""
        assert self._holder is not None
        return Path(f"/proc/{self._holder.pid}/root{MOUNT}")

    def fill(self) -> int:
        """Take all the space there is; return how many bytes that was."""
        taken = 0
        number = os.open(self.path / "filler", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            while True:
                taken += os.write(number, bytes(4_096))
        except OSError:
            return taken
        finally:
            os.close(number)

    def free(self) -> None:
        """Give it back."""
        (self.path / "filler").unlink()
