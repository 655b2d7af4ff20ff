"""The configuration loader of every program of ours: nodes, dispatchers and workers.

A setting is looked up in four places, and the first that has it wins:

    the flags          {"log.fsync": "always"}          by dotted name
    the environment    WATERCLOCK_LOG__FSYNC=always     two underscores go one level down
    the file           log: {fsync: always}             YAML
    its default        in its section

Every place is checked, also where another wins: a mistake in the file is reported today, not on
the day the flag is dropped. Nothing here reads a file or the environment; the loader is handed
what the shell read, and all it ever raises is BadConfig.
"""

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import TypeVar

from waterclock.model.errors import BadConfig
from waterclock.model.settings import Section, Setting, settings_of, shown

ENVIRONMENT_PREFIX = "WATERCLOCK_"
NAME_CHARS_MAX = 100

AnySection = TypeVar("AnySection", bound=Section)


def read_settings(
    settings: Mapping[str, Setting],
    *,
    yaml_text: str | None,
    environ: Mapping[str, str],
    flags: Mapping[str, object],
    sections: Collection[str],
    environ_prefix: str = ENVIRONMENT_PREFIX,
    other_prefixes: tuple[str, ...] = (),
) -> dict[str, object]:
    """Return the checked values of the settings that are set anywhere, by dotted path.

    `sections` are those that the file may have: one file may serve several programs, and each reads
    its own. Names of the environment that do not begin with the prefix, or that are another
    program's, are left alone. Raises BadConfig, naming the setting.
    """
    ours = {path.partition(".")[0] for path in settings}
    names = (name for name in environ if name.startswith(environ_prefix))
    sources = (
        ("file", _from_file(yaml_text or "", sections, ours)),
        # Without the two underscores it is not a setting: Kubernetes gives every container names
        # like WATERCLOCK_PORT and WATERCLOCK_SERVICE_HOST if a service is called waterclock.
        (
            "environment",
            {
                _path_of(name): environ[name]
                for name in names
                if "__" in name and not name.startswith(other_prefixes)
            },
        ),
        ("flags", flags),
    )
    values = {}
    for source, given in sources:
        for path, raw in given.items():
            if path not in settings:
                raise _unknown(path, settings, source=source)
            values[path] = settings[path].read(raw, source=source)
    return values


def build_section(section: type[AnySection], values: Mapping[str, object]) -> AnySection:
    """Return a section with these values, by dotted path, and defaults for the rest."""
    return section(
        **{
            setting.attribute: values[setting.path]
            for setting in settings_of(section)
            if setting.path in values
        }
    )


def _from_file(text: str, sections: Collection[str], ours: Collection[str]) -> dict[str, object]:
    given: dict[str, object] = {}
    if not text:
        return given
    from waterclock.model.strict_yaml import read_yaml  # a node without a file needs none of it

    for name, body in _mapping("file", read_yaml(text)).items():
        if name not in sections:
            raise _unknown(name, sections, source="file")
        settings = _mapping(name, body)
        if name in ours:
            given |= {f"{name}.{key}": raw for key, raw in settings.items()}
    return given


def _mapping(path: str, node: object) -> dict[str, object]:
    # A section whose lines are all commented out is empty, not wrong.
    if node is None:
        return {}
    if not isinstance(node, dict):
        raise BadConfig(path, f"expected names and values, got {shown(node)}")
    return node


def _path_of(name: str) -> str:
    path = name.removeprefix(ENVIRONMENT_PREFIX).replace("__", ".")
    return path.lower() if path.isupper() else path


def _unknown(name: str, known: Iterable[str], *, source: str) -> BadConfig:
    readable = name if name and name.isprintable() else ascii(name)
    near = get_close_matches(name[:NAME_CHARS_MAX].lower(), known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return BadConfig(readable[:NAME_CHARS_MAX], f"is not a setting, in the {source}{hint}")
