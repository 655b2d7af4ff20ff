"""What a URL says of TLS, without a server."""

import ssl
from pathlib import Path

import pytest

from tests.dispatch.certificates import certificates
from waterclock.model.errors import BadConfig
from waterclock.stores.cassandra.store import CassandraStore
from waterclock.stores.mysql.connections import _settings
from waterclock.stores.postgres import _checking
from waterclock.stores.tls import problem_of

MYSQL = "mysql://user:planted@host/name"
CASSANDRA = "cassandra://user:planted@host/name"


def test_mysql_trusts_the_ca_that_is_named_and_checks_the_host(tmp_path: Path) -> None:
    files = certificates(tmp_path)
    context = _settings(f"{MYSQL}?ssl_ca={files.ca}")["ssl"]
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert len(context.get_ca_certs()) == 1
    assert _settings(f"{MYSQL}?ssl=true")["ssl"].check_hostname
    assert "ssl" not in _settings(MYSQL)


@pytest.mark.parametrize("options", ["ssl=false", "ssl_ca=/none", "ssl_verify=false"])
def test_what_would_not_be_checked_is_refused_without_the_password(options: str) -> None:
    with pytest.raises(BadConfig) as refused:
        _settings(f"{MYSQL}?{options}")
    assert "planted" not in str(refused.value)
    with pytest.raises(BadConfig) as refused:
        CassandraStore(f"{CASSANDRA}?{options}")
    assert "planted" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "added"),
    [
        ("", ""),
        ("?sslrootcert=/ca.pem", "&sslmode=verify-full"),
        ("?sslmode=verify-ca&sslrootcert=/ca.pem", ""),
        ("?sslmode=require", ""),
    ],
)
def test_postgresql_checks_in_full_as_soon_as_a_ca_is_named(options: str, added: str) -> None:
    url = f"postgresql://user@host/name{options}"
    assert _checking(url) == f"{url}{added}"


def test_a_certificate_that_is_not_trusted_is_told_wherever_the_driver_hides_it() -> None:
    cause = ssl.SSLCertVerificationError("verify failed")
    cause.verify_message = "self-signed certificate"
    error = OSError("lost")
    error.__cause__ = cause
    assert "is not trusted: self-signed certificate; " in problem_of(error)
    assert problem_of(OSError("away")) == "away"
    assert problem_of(TimeoutError()) == "TimeoutError"


def test_a_certificate_that_is_not_trusted_is_told_where_a_driver_has_kept_the_words_only() -> None:
    said = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate has expired"
    assert "is not trusted: certificate has expired; " in problem_of(OSError(f"{said} (_ssl.c:1)"))
    bare = ssl.SSLCertVerificationError("certificate verify failed")  # as aiohttp's, without more
    assert "is not trusted: its CA is unknown; " in problem_of(bare)
