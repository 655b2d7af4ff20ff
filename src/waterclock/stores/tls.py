"""TLS to the server of a store: its certificate must be of a CA that is trusted, and for its name.

Also TLS 1.2 is spoken: the server is not ours.
"""

import re
import ssl

from waterclock.model.errors import BadConfig

FIELD = "streams.store"
_NOT_TRUSTED = re.compile(r"certificate verify failed(?:: ([^(\]]*))?", re.IGNORECASE)
"""As OpenSSL says it, where a driver keeps its words and not the error."""


def context_of(ca: str | None) -> ssl.SSLContext:
    """Return how to speak to a server whose certificate is of a CA in a file, or else of one that
    the system trusts. Raises BadConfig."""
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:
        reason = "is no certificate" if isinstance(error, ssl.SSLError) else error.strerror
        raise BadConfig(FIELD, f"{ca}: {reason}") from None


def problem_of(error: BaseException) -> str:
    """Return what went wrong on the way to a server, in a sentence if TLS came to nothing."""
    cause: BaseException | None = error
    while cause is not None:
        # aiohttp's own is of this kind, and has not what it has.
        if isinstance(cause, ssl.SSLCertVerificationError) and hasattr(cause, "verify_message"):
            return _not_trusted(cause.verify_message)
        cause = cause.__cause__ or cause.__context__
    if (said := _NOT_TRUSTED.search(str(error))) is not None:
        return _not_trusted((said[1] or "its CA is unknown").strip())
    return str(error) or type(error).__name__


def _not_trusted(reason: str) -> str:
    return (
        f"the server's certificate is not trusted: {reason.rstrip('.')};"
        " the URL must name the file of its CA"
    )
