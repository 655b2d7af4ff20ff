"""What a node did about who asks, as metrics: refusals, reloads, and when its certificates end.

A node that is not secure refuses nobody, and has no certificates: it shows reloads alone.
"""

from collections.abc import Iterator

from waterclock.security.certificates import expires_ms_of
from waterclock.server.access import Access
from waterclock.server.families import Family, Sample, counter, gauge
from waterclock.server.reload import Reloader


def security_families(access: Access, reloader: Reloader) -> Iterator[Family]:
    """Yield all of them."""
    refusals = access.refusals
    unknown: list[Sample] = []
    denied: list[Sample] = []
    over_quota: list[Sample] = []
    reloads: list[Sample] = [
        (("configuration", "done"), reloader.reloads),
        (("configuration", "failed"), reloader.failures),
    ]
    if access.is_secure:
        unknown += (((protocol,), count) for protocol, count in refusals.unauthenticated.items())
        denied += refusals.denied.items()
        over_quota += refusals.over_quota.items()
        reloads.append((("secure_folder", "done"), access.reloads))
        reloads.append((("secure_folder", "failed"), access.failed_reloads))
    yield counter(
        "authentications_failed",
        "Requests without a credential that is good.",
        ("protocol",),
        unknown,
    )
    yield counter(
        "denied", "Requests of principals without the right.", ("protocol", "right"), denied
    )
    yield counter(
        "over_quota",
        "Requests refused because their principal is at a quota.",
        ("protocol", "quota"),
        over_quota,
    )
    yield counter(
        "reloads",
        "Times settings or the secure folder were read again.",
        ("what", "outcome"),
        reloads,
    )
    yield gauge(
        "certificate_expiry_seconds",
        "When a certificate ends, as Unix time.",
        ("certificate",),
        list(_expiries(access)),
    )


def _expiries(access: Access) -> Iterator[Sample]:
    if access.is_secure:
        state = access.state
        yield ("node",), expires_ms_of(state.node.certificate_pem) / 1_000
        yield ("ca",), expires_ms_of(state.ca_pem) / 1_000
