"""What was typed, made a value without pydantic, where that is plain to see.

Typer has pydantic convert every value, and loading that takes longer than most commands do. Text is
text as it stands, and so is a number a number; whatever else there is, and whatever is wrong, goes
Typer's way, which words the errors.
"""

from pathlib import Path
from typing import Any, cast

from typer.core import TyperArgument, TyperOption

_PATH_CHECKS = ("exists", "writable", "resolve_path", "allow_dash")


class PlainParameter:
    """Stands before what Typer converts a parameter by."""

    def __init__(self, parameter: Any, slow: Any) -> None:  # noqa: ANN401 - Typer keeps the types
        self._parameter = parameter
        self._slow = slow

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ANN401
        """Return the value that is meant; raises Typer's own errors."""
        is_multiple = param.multiple or param.nargs == -1
        if value is None:
            return () if is_multiple else None
        about = self._parameter.type_descriptor
        if about.parameter_info.parser is None:
            if is_multiple:
                if about.annotation == list[str] and all(type(each) is str for each in value):
                    return list(value)
            elif (found := _plain(value, about)) is not None:
                return found
        return self._slow(self._parameter).coerce(value, param=param, ctx=ctx)


def _plain(value: Any, about: Any) -> object:  # noqa: ANN401
    """Return what a single value means; None if that is not plain."""
    info = about.parameter_info
    if about.annotation is str and type(value) is str:
        return value
    if about.annotation is int:
        is_number = type(value) is int or (type(value) is str and value.isdecimal())
        if is_number and value.__str__().isascii() and not info.clamp:
            number = int(value)
            is_above = info.min is None or number >= info.min
            return number if is_above and (info.max is None or number <= info.max) else None
    if about.annotation is Path and not any(getattr(info, each) for each in _PATH_CHECKS):
        return Path(value)
    return None


def use_plain_parameters() -> None:
    """Have all parameters of this process read so; older Typers know nothing of pydantic."""
    for kind in (TyperOption, TyperArgument):
        slow = getattr(kind, "get_runtime_param", None)
        if slow is None or getattr(slow, "is_plain", False):
            continue

        def plain(self: Any, slow: Any = slow) -> PlainParameter:  # noqa: ANN401
            return PlainParameter(self, slow)

        cast(Any, plain).is_plain = True
        cast(Any, kind).get_runtime_param = plain
