"""Calls made at once whose first problem is the problem of all of them."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from waterclock.runtime.lifecycle import first_error


async def together(calls: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Wait for all; if one fails, cancel the others and raise its error."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for call in calls:
                tasks.create_task(call)
    except ExceptionGroup as problems:
        raise first_error(problems) from problems
