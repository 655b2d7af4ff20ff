"""What can be wrong with bytes and keys of others; nothing else is raised on purpose here."""

from waterclock.model.errors import BadInput


class BadPacket(BadInput):
    """Bytes from the network are no packet or stream of ours: drop them, and count them."""


class BadKey(BadInput):
    """A key is of the wrong length, or not in the keyring."""
