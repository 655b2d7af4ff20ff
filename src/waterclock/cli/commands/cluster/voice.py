"""What a command says that runs several nodes: to a person who watches, or to a program."""

import sys

from rich.console import Console
from rich.text import Text

from waterclock.cli.output.terminal import console

COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


class Voice:
    """With `as_json`, only warnings and logs are said, on stderr."""

    def __init__(self, *, as_json: bool) -> None:
        self.out = console()
        self._as_json = as_json
        self._err = Console(stderr=True, highlight=False, markup=False, emoji=False)

    def say(self, text: str, style: str) -> None:
        """Tell a person something."""
        if not self._as_json:
            self.out.print(text, style=style, soft_wrap=True)

    def say_of(self, name: str, colour: str, text: str) -> None:
        """Tell a person who watches how a node is doing."""
        if self.out.is_terminal and not self._as_json:
            self.out.print(Text.assemble((name, colour), f"  {text}"))

    def warn(self, text: str) -> None:
        """Tell a person, or on stderr whoever reads the log of a program."""
        if self._as_json:
            print(text, file=sys.stderr, flush=True)
        else:
            self.out.print(text, style="bold yellow", soft_wrap=True)

    def pass_on(self, name: str, colour: str, line: str) -> None:
        """Show a line that a node logs, with its name before it."""
        if self._as_json:
            print(line, file=sys.stderr, flush=True)
        else:
            self._err.print(Text.assemble((f"{name}  ", colour), line), soft_wrap=True)
