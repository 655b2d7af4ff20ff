"""Seeds that a cloud knows: its instances with a tag, in the words of HashiCorp's go-discover.

    provider=aws tag_key=cluster tag_value=orders region=eu-central-1
    provider=gce tag_value=orders project_name=shop zone_pattern=europe-.*
    provider=azure tag_name=cluster tag_value=orders subscription_id=…
    provider=azure resource_group=shop vm_scale_set=orders subscription_id=…

So a node needs to know no address: who bears the tag is asked to let it in. Credentials are found
as the provider's own tools find them (environment, files, the instance's role), and are refused in
a seed, which is configuration and may be read by many. Each provider is a module with an extra of
its own, asked in a thread: their libraries block.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Final, NamedTuple

from waterclock.model.errors import BadConfig

FIELD: Final = "cluster.bootstrap_nodes"
PREFIX: Final = "provider="
SECRETS: Final = frozenset(
    {"access_key_id", "secret_access_key", "session_token", "credentials_file", "client_id"}
)
"""What go-discover takes and a seed does not."""
ADDRESS_KINDS: Final = ("private_v4", "public_v4", "public_v6")
_REASON_MAX: Final = 300


@dataclass(frozen=True, slots=True)
class Provider:
    """What a provider can be told, and what it needs."""

    library: str
    extra: str
    ways: tuple[frozenset[str], ...]
    """One of these must be told whole."""
    others: frozenset[str]

    @property
    def options(self) -> frozenset[str]:
        """All it can be told."""
        return self.others.union(*self.ways)


PROVIDERS: Final = {
    "aws": Provider(
        "botocore",
        "aws",
        (frozenset({"tag_key", "tag_value"}),),
        frozenset({"region", "addr_type", "endpoint"}),
    ),
    "gce": Provider(
        "google.auth",
        "gcp",
        (frozenset({"tag_value"}),),
        frozenset({"project_name", "zone_pattern", "endpoint"}),
    ),
    "azure": Provider(
        "azure.identity",
        "azure",
        (
            frozenset({"subscription_id", "tag_name", "tag_value"}),
            frozenset({"subscription_id", "resource_group", "vm_scale_set"}),
        ),
        frozenset({"endpoint"}),
    ),
}


class CloudSeed(NamedTuple):
    """Instances that a provider is asked for; `port` is that of their gossip."""

    provider: str
    options: Mapping[str, str]
    port: int

    def __str__(self) -> str:
        words = " ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{PREFIX}{self.provider} {words}"


def parse_cloud_seed(text: str, *, port: int) -> CloudSeed:
    """Return a seed; raise BadConfig if it is none, or if its extra is not installed."""
    options: dict[str, str] = {}
    for word in text.split():
        name, _, value = word.partition("=")
        if not value or name in options:
            raise BadConfig(FIELD, f"{text!r} is not made of words name=value, each once")
        options[name] = value
    name = options.pop("provider")
    provider = PROVIDERS.get(name)
    if provider is None:
        raise BadConfig(FIELD, f"there is no provider {name!r}, there are {', '.join(PROVIDERS)}")
    if "port" in options:
        port = _port(options.pop("port"), text)
    _check(name, provider, options)
    return CloudSeed(name, options, port)


def find_instances(seed: CloudSeed) -> list[str]:
    """Ask the provider for the addresses of instances; blocks. Raises OSError in one line."""
    module = import_module(f"{__name__}.{seed.provider}")
    find: Callable[[Mapping[str, str]], list[str]] = module.find
    try:
        return find(seed.options)
    except (LookupError, TypeError, AttributeError) as error:
        # What an API says is not in our hands: another shape than its reference has is no crash.
        raise OSError(f"an answer that is not understood: {one_line(repr(error))}") from error


def one_line(error: object) -> str:
    """Return what an error says, for a line of a log."""
    return " ".join(str(error).split())[:_REASON_MAX]


def _port(text: str, seed: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 0 < int(text[:6]) <= 65_535:
        raise BadConfig(FIELD, f"{seed!r} has no port that can be")
    return int(text)


def _check(name: str, provider: Provider, options: Mapping[str, str]) -> None:
    if secrets := sorted(SECRETS & options.keys()):
        said = f"{secrets[0]} is no part of a seed: {name} is asked with the credentials that its"
        raise BadConfig(FIELD, f"{said} own tools find, in the environment or of the instance")
    if unknown := sorted(options.keys() - provider.options):
        known = ", ".join(sorted(provider.options))
        raise BadConfig(FIELD, f"{name} knows no {unknown[0]}, it knows {known} and port")
    if not any(way <= options.keys() for way in provider.ways):
        ways = ", or ".join(" and ".join(sorted(way)) for way in provider.ways)
        raise BadConfig(FIELD, f"{name} must be told {ways}")
    if not options.get("endpoint", "https://").startswith(("http://", "https://")):
        raise BadConfig(FIELD, f"the endpoint of {name} is no URL")
    kind = options.get("addr_type", ADDRESS_KINDS[0])
    if kind not in ADDRESS_KINDS:
        known = ", ".join(ADDRESS_KINDS)
        raise BadConfig(FIELD, f"there is no addr_type {kind}, there are {known}")
    try:
        re.compile(options.get("zone_pattern", ""))
    except re.error as error:
        raise BadConfig(FIELD, f"zone_pattern is no regular expression: {error}") from None
    if not _is_installed(provider.library):
        needs = f"a seed provider={name} needs: pip install 'waterclock[{provider.extra}]'"
        raise BadConfig(FIELD, needs)


def _is_installed(library: str) -> bool:
    try:
        return find_spec(library) is not None
    except ModuleNotFoundError:  # not even the package it is in
        return False
