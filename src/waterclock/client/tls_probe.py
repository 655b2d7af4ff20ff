"""Whether a port speaks TLS: asked where a client in the open was hung up on.

A server of TLS closes a connection on which it finds no TLS, and says nothing. So does a node that
dies; so the port is asked, once, with the greeting that only a server of TLS answers.
"""

import asyncio
import ssl
from contextlib import suppress

PROBE_S = 2.0
_HANDSHAKE, _ALERT = 0x16, 0x15
"""The types of record with which a server of TLS may answer (RFC 8446, 5.1)."""


async def speaks_tls(host: str, port: int) -> bool:
    """Return whether what listens there answers like a server of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent to it
    out = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost").do_handshake()
    try:
        async with asyncio.timeout(PROBE_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(out.read())
                greeting = await reader.read(1)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
    return bool(greeting) and greeting[0] in (_HANDSHAKE, _ALERT)
