"""`waterclock log`: looking into a log on disk, and repairing it."""

import typer

from waterclock.cli.commands.logs.log import check, repair
from waterclock.cli.commands.logs.log_show import show

app = typer.Typer(help="Look into a log on disk, or repair it.", no_args_is_help=True)
app.command("show")(show)
app.command("check")(check)
app.command("repair")(repair)
