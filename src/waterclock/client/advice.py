"""What to do about a refusal: errors that a person must mend say how.

A node says what is wrong; what to type is up to the side that was refused.
"""

import re

from waterclock.model.errors import Forbidden, NotAuthenticated, WaterclockError

GIVE_CREDENTIAL = (
    "give a credential, which `waterclock secure add NAME ...` prints: connect(credential=...), "
    "--credential or WATERCLOCK_CREDENTIAL"
)
_DENIAL = re.compile(r"(\S+) has no right to (\w+) ")
_AS_OPTIONS = {
    "publish": "--publish GLOB",
    "consume": "--consume GLOB",
    "schedule": "--schedule GLOB",
    "read": "--read GLOB",
    "admin": "--admin",
}


def advised(error: WaterclockError) -> WaterclockError:
    """Return the error, with what to do next if it is about who asks."""
    if isinstance(error, NotAuthenticated | Forbidden):
        words = str(error)
        if "waterclock secure" not in words:  # the node has not said so itself
            error.args = (f"{words}; {_next(error)}",)
    return error


def _next(error: NotAuthenticated | Forbidden) -> str:
    if isinstance(error, NotAuthenticated):
        return GIVE_CREDENTIAL
    # Of one batch of a stream, the facts are in the words alone.
    said = _DENIAL.match(str(error))
    name = getattr(error, "principal", None) or (said[1] if said else "NAME")
    right = getattr(error, "right", None) or (said[2] if said else "")
    option = _AS_OPTIONS.get(right, "...")
    return (
        "use another credential, or give the right with "
        f"`waterclock secure add {name} --replace {option}`, beside those it has"
    )
