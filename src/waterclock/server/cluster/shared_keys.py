"""What the nodes of a cluster share: the keys of gossip, of their links and of resume tokens.

Nodes that are secured have them from `cluster.json`, and link by TLS with a certificate on both
sides. All certificates are of one CA, and principals may have some, too: so a node also proves that
it knows the keys, which only nodes have. Nodes that are not secured, on loopback or by the word
`insecure`, share no secret: whoever knows the name of the cluster can join it, and can make resume
tokens.
"""

import logging
import ssl
from hashlib import blake2b

from waterclock.cluster.gossip import Keyring
from waterclock.model.errors import BadConfig, BadInput
from waterclock.security.cluster_keys import (
    FILE,
    GOSSIP,
    PEER_LINK,
    STREAM_TOKENS,
    ClusterKeys,
)
from waterclock.security.folder import SecureFolder, SecureState
from waterclock.security.tls import client_context, server_context
from waterclock.server.cluster.peers import PeerSecurity
from waterclock.streams.tokens import KEY_BYTES

log = logging.getLogger(__name__)


class SharedKeys:
    """The keys as one node has them; `reload` after the secure folder has changed."""

    def __init__(self, folder: SecureFolder | None, cluster_name: str) -> None:
        """Raises BadConfig, BadInput or StorageFailed if there is a folder without good keys."""
        self.keyring: Keyring | None = None
        """Of gossip; None: nothing is sealed."""
        self._folder = folder
        self._cluster_name = cluster_name
        self._keys: ClusterKeys | None = None
        if folder is not None:
            self._keys = folder.load().cluster_keys
            if self._keys is None:
                raise BadConfig(
                    "security.folder",
                    f"{folder.path} has no {FILE}, by which nodes of a cluster know each other: "
                    "run `waterclock secure init` again, and copy the folder to all of them",
                )
            self.keyring = Keyring(self._keys.derived(GOSSIP))

    def __repr__(self) -> str:
        return f"<SharedKeys {self._keys!r}>"

    @property
    def token_keys(self) -> tuple[bytes, ...]:
        """The keys of resume tokens, the one to make them with first."""
        if self._keys is not None:
            return self._keys.derived(STREAM_TOKENS)
        name = self._cluster_name.encode()
        return (blake2b(name, digest_size=KEY_BYTES, person=b"stream-token").digest(),)

    def peer_security(self) -> PeerSecurity:
        """Return how nodes know each other; raises BadInput if certificate and key do not fit."""
        folder, keys = self._folder, self._keys
        if folder is None or keys is None:
            return PeerSecurity()
        server = server_context(folder.node_certificate, folder.node_key, folder.ca)
        server.verify_mode = ssl.CERT_REQUIRED
        client = client_context(folder.ca.read_bytes(), folder.node_certificate, folder.node_key)
        # Nodes find each other by address, and may all show the same certificate: that it is one of
        # their CA, for servers, is what counts.
        client.check_hostname = False
        return PeerSecurity(keys.derived(PEER_LINK), server, client)

    def reload(self, state: SecureState) -> PeerSecurity | None:
        """Go by the folder as it is now; return how nodes know each other from now on, None if it
        cannot be told: then all stays as it was."""
        if state.cluster_keys is None:
            log.error("cluster_keys_missing file=%s: the keys stay as they were", FILE)
            return None
        self._keys = state.cluster_keys
        assert self.keyring is not None
        _renew(self.keyring, self._keys.derived(GOSSIP))
        try:
            return self.peer_security()
        except BadInput as error:  # it is rotated at this moment: there will be another change
            log.warning("cluster_certificate_not_loaded: %s", error)
            return None


def _renew(keyring: Keyring, keys: tuple[bytes, ...]) -> None:
    """Seal with the first of these keys, and open with all of them and no others."""
    for key in keys:
        keyring.add(key)
    keyring.use(keys[0])
    for key in keyring.keys:
        if key not in keys:
            keyring.remove(key)
