"""From a URL to a store. The driver of a database is looked for only when its URL is used."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

from waterclock.model.errors import BadConfig
from waterclock.stores.base import StreamStore
from waterclock.stores.log.store import LogStore
from waterclock.stores.sqlite import SqliteStore

FIELD = "streams.store"
_SERVERS = {
    "postgresql": ("postgres", "waterclock.stores.postgres", "PostgresStore"),
    "mysql": ("mysql", "waterclock.stores.mysql.store", "MysqlStore"),
    "mongodb": ("mongodb", "waterclock.stores.mongodb", "MongodbStore"),
    "dynamodb": ("dynamodb", "waterclock.stores.dynamodb.store", "DynamodbStore"),
    "cassandra": ("cassandra", "waterclock.stores.cassandra.store", "CassandraStore"),
}
"""By scheme: the extra with the driver, the module, the class; made from the URL."""


def open_store(url: str) -> StreamStore:
    """Make the store a URL names. You must `open` it, on the loop that will use it."""
    scheme = url.partition(":")[0]
    if scheme == "log":
        return LogStore(_path(url))
    if scheme == "sqlite":
        return SqliteStore(_path(url))
    if scheme not in _SERVERS:
        known = ", ".join(["log", "sqlite", *sorted(_SERVERS)])
        raise BadConfig(FIELD, f"knows no scheme {scheme!r}; there are {known}")
    extra, module, name = _SERVERS[scheme]
    try:
        make: Callable[[str], StreamStore] = getattr(import_module(module), name)
    except ImportError as error:
        needed = f"{scheme} needs a driver: pip install 'waterclock[{extra}]'"
        raise BadConfig(FIELD, needed) from error
    return make(url)


def _path(url: str) -> Path:
    """Give the path of `scheme:///absolute` or `scheme:relative`."""
    parts = urlsplit(url)
    if parts.netloc or not parts.path or parts.query or parts.fragment:
        raise BadConfig(FIELD, f"must be {parts.scheme}:///absolute/path (got {url!r})")
    return Path(unquote(parts.path))
