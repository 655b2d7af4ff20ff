"""The `waterclock` command: one file per command, put together in `app`.

A command that succeeds ends with 0. It ends with 1 if it found what it looks for (damage, a lost
message), did not all it was asked to or was declined, and with 2 if it could not do its work, after
one line `error: …` that says what to do; Ctrl-C ends it with 130. What people read goes to stdout,
as a table on a terminal and plain in a pipe; `--json` prints one object instead, or one a line for
messages. Progress and questions go to stderr, and only to a terminal. What cannot be undone is
asked for; where nobody can answer, it needs `--yes`.

Only the command that is called is imported (`catalog`); what asks a node once loads little
(`node_call`), and what is heavy is imported where it is used.
"""

from waterclock.cli.app import main

__all__ = ["main"]
