"""What is not installed, told by the extra of ours that brings it."""

from importlib.util import find_spec


def need(module: str, extra: str) -> None:
    """Raise ModuleNotFoundError with what to install, unless a module can be imported."""
    if find_spec(module) is None:
        raise ModuleNotFoundError(
            f"{module} is not installed: pip install 'waterclock[{extra}]'", name=module
        )
