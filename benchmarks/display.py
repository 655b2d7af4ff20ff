"""What a benchmark shows to people: a table on stdout, progress on stderr."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

TABLE_WIDTH = 132
RIGHT_ALIGNED = frozenset({"value", "least .. greatest", "bar"})


def print_table(
    title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], footers: Iterable[str]
) -> None:
    """Print a table and lines below it."""
    table = Table(title=title)
    for heading in headings:
        is_right = heading in RIGHT_ALIGNED
        table.add_column(heading, justify="right" if is_right else "left", no_wrap=is_right)
    for row in rows:
        table.add_row(*row)
    console = Console(width=TABLE_WIDTH)
    console.print(table)
    for footer in footers:
        console.print(footer, markup=False, highlight=False)


@contextmanager
def progress(title: str, *, steps: int) -> Iterator[Callable[[str], None]]:
    """Show progress on stderr; call what is given before each step, with what it is.

    Drawn only when called: a thread that redraws would be measured along with the case.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as bars:
        task = bars.add_task(title, total=steps, completed=-1)

        def tick(what: str) -> None:
            bars.update(task, description=f"{title}: {what}", advance=1, refresh=True)

        yield tick
