"""`--credential`, beside every `--address`: whoever says where the node is may say as whom.

It is put in where the commands are put together, so that no command can be without it. What it says
goes where clients look for it, the environment, and so reaches all of a command: completion, Spark
and its workers. What was typed is nearer than WATERCLOCK_ADDRESS, which gives way to the address in
the credential.
"""

import functools
import inspect
import os
from collections.abc import Callable
from typing import Annotated

import typer

from waterclock.client.settings import ADDRESS_VARIABLE
from waterclock.security.credential import CREDENTIAL_VARIABLE, Credential

NAME = "credential"


def _use(context: typer.Context, value: str | None) -> str | None:
    """Let the command, and those below it, connect with a credential."""
    if value is not None:
        Credential.read(value)  # a mistake is told before anything is done
        before = dict(os.environ)
        os.environ[CREDENTIAL_VARIABLE] = value
        os.environ.pop(ADDRESS_VARIABLE, None)
        context.call_on_close(functools.partial(_restore, before))
    return value


def _restore(before: dict[str, str]) -> None:
    for name in (CREDENTIAL_VARIABLE, ADDRESS_VARIABLE):
        os.environ.pop(name, None)
        if name in before:
            os.environ[name] = before[name]


CredentialOption = Annotated[
    str | None,
    typer.Option(
        f"--{NAME}",
        metavar="TEXT|@FILE",
        help="As whom to connect: what `waterclock secure add` printed.",
        show_default=CREDENTIAL_VARIABLE,
        callback=_use,
    ),
]


def add_to_all(app: typer.Typer) -> None:
    """Give the option to every command, of whatever depth, that has an address."""
    for command in app.registered_commands:
        command.callback = _with_credential(command.callback)
    for group in app.registered_groups:
        inner = group.typer_instance
        assert inner is not None
        if inner.registered_callback is not None:
            inner.registered_callback.callback = _with_credential(
                inner.registered_callback.callback
            )
        add_to_all(inner)


def _with_credential(function: Callable[..., object] | None) -> Callable[..., object] | None:
    assert function is not None
    signature = inspect.signature(function, eval_str=True)
    parameters = dict(signature.parameters)
    if "address" not in parameters or NAME in parameters:
        return function

    @functools.wraps(function)
    def command(**given: object) -> object:
        given.pop(NAME)  # the option has seen to it
        return function(**given)

    option = inspect.Parameter(
        NAME, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=CredentialOption
    )
    named = [each.replace(kind=option.kind) for each in parameters.values()]
    place = next(at for at, each in enumerate(named) if each.name == "address")
    named.insert(place + 1, option)
    command.__signature__ = signature.replace(parameters=named)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in named}
    return command
