"""A network for nodes on one machine: a namespace each, a bridge between them, and ways to harm it.

Every node has an address of its own. What it sends passes the end of a cable outside its namespace,
where a filter of the kernel (a classifier of `tc`, in classic BPF) drops what is for nodes that it
is cut off from, and a share of the rest. What is for this side of the bridge, where clients are,
always passes. (`netem` would do as much, but not every kernel has it.)

It needs root. All names bear the id of this process: what a run that was killed has left behind is
known by that, and is removed by the next.
"""

import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

OURS = re.compile(r"wc(\d+)[nbv]\d*")
ETHERTYPE, DESTINATION, IPV4 = 12, 30, 0x0800
"""Places in a frame, and what the first says of the ones that are meant."""
LOAD_HALF, LOAD_WORD, EQUAL, AT_LEAST, RETURN = 0x28, 0x20, 0x15, 0x35, 0x06
RANDOM = 0xFFFFF000 + 56
"""From here a word is loaded that is another each time (SKF_AD_RANDOM)."""
PASS, DROP = 0xFFFFFFFF, 2
THIN_LINE = "tbf rate 600kbit burst 16kb latency 400ms"

Instruction = tuple[int, int, int, int]
"""Operation, how many to skip if it holds, if it does not, and a constant."""


class NoNamespaces(Exception):
    """The machine lets nobody make networks."""


def run(*words: str) -> str:
    """Run a command; raise NoNamespaces with what it says if it fails."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoNamespaces(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def program(cut_off: Iterable[str], client: str, loss: float) -> list[Instruction]:
    """Return a filter: drop what is for these addresses, and a share of what is for others."""
    targets = [_number(address) for address in cut_off]
    rest: list[Instruction] = [
        (EQUAL, 3, 0, _number(client)),
        (LOAD_WORD, 0, 0, RANDOM),
        (AT_LEAST, 1, 0, round(loss * 0xFFFFFFFF)),
        (RETURN, 0, 0, DROP),
        (RETURN, 0, 0, PASS),
    ]
    # A match is followed by a jump to the drop, the last but one of all.
    matches: list[Instruction] = [
        (EQUAL, len(targets) - index - 1 + len(rest) - 2, 0, target)
        for index, target in enumerate(targets)
    ]
    return [
        (LOAD_HALF, 0, 0, ETHERTYPE),
        (EQUAL, 0, 1 + len(matches) + len(rest) - 1, IPV4),
        (LOAD_WORD, 0, 0, DESTINATION),
        *matches,
        *rest,
    ]


def bytecode(instructions: Sequence[Instruction]) -> str:
    """Return a filter as `tc` takes it."""
    texts = [" ".join(map(str, each)) for each in instructions]
    return f"{len(texts)},{','.join(texts)}"


def _number(address: str) -> int:
    return int.from_bytes(bytes(map(int, address.split("."))))


class Namespaces:
    """Networks of so many nodes. Use it in a `with` block."""

    def __init__(self, count: int) -> None:
        self._prefix = f"wc{os.getpid()}"
        self._net = f"10.213.{os.getpid() % 250}"
        self._count = count
        self.client = f"{self._net}.254"
        """The address of this side."""
        self.hosts = [f"{self._net}.{index + 1}" for index in range(count)]

    def __enter__(self) -> "Namespaces":
        sweep()
        try:
            self._make()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def command(self, index: int) -> list[str]:
        """Return what runs a command as a node of the network; it ends with this process."""
        name = f"{self._prefix}n{index}"
        return ["ip", "netns", "exec", name, "setpriv", "--pdeathsig", "KILL"]

    def harm(self, index: int, *, cut_off: Iterable[int] = (), loss: float = 0.0) -> None:
        """Have a node reach these not at all, and others with losses; with nothing, heal it."""
        blocked = [self.hosts[other] for other in cut_off]
        instructions = program(blocked, self.client, loss)
        words = f"dev {self._prefix}v{index} ingress prio 1 protocol all handle 1 bpf da bytecode"
        run("tc", "filter", "replace", *words.split(), bytecode(instructions))

    def slow(self, index: int, *, is_slow: bool) -> None:
        """Have what is for a node wait in a queue, as on a line that is too thin."""
        cable = f"{self._prefix}v{index}"
        if is_slow:
            run("tc", "qdisc", "replace", "dev", cable, "root", *THIN_LINE.split())
        else:
            _try("tc", "qdisc", "del", "dev", cable, "root")

    def remove(self) -> None:
        """Take all of it away; what is not there is no harm."""
        # The cables by name: with their namespace they would go too, but later.
        for index in range(self._count):
            _try("ip", "link", "del", f"{self._prefix}v{index}")
            _try("ip", "netns", "del", f"{self._prefix}n{index}")
        _try("ip", "link", "del", f"{self._prefix}b")

    def _make(self) -> None:
        bridge = f"{self._prefix}b"
        run("ip", "link", "add", bridge, "type", "bridge")
        run("ip", "addr", "add", f"{self.client}/24", "dev", bridge)
        run("ip", "link", "set", bridge, "up")
        for index, host in enumerate(self.hosts):
            space, cable = f"{self._prefix}n{index}", f"{self._prefix}v{index}"
            run("ip", "netns", "add", space)
            run(*f"ip link add {cable} type veth peer name eth0 netns {space}".split())
            run("ip", "link", "set", cable, "master", bridge, "up")
            run("ip", "-n", space, "addr", "add", f"{host}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                run("ip", "-n", space, "link", "set", device, "up")
            run("tc", "qdisc", "add", "dev", cable, "clsact")
            self.harm(index)


def sweep() -> None:
    """Remove what runs left behind whose process is no more."""
    for name in run("ip", "netns", "list").split():
        if _is_left(name):
            _try("ip", "netns", "del", name)
    for line in run("ip", "-br", "link").splitlines():
        name = line.split()[0].partition("@")[0]
        if _is_left(name):
            _try("ip", "link", "del", name)


def _is_left(name: str) -> bool:
    found = OURS.fullmatch(name)
    return found is not None and not Path(f"/proc/{found[1]}").exists()


def _try(*words: str) -> None:
    subprocess.run(words, capture_output=True, check=False)
