"""Who can reach a node that asks nobody for a credential: this machine only, unless that is wanted.

Whoever reaches the ports of a node that is not secured reads, publishes and deletes. So such a node
listens on loopback; to listen elsewhere takes `waterclock secure init`, or the word `insecure`,
which is said again in the log at each start.
"""

import ipaddress
import logging
import socket

from waterclock.model.config import Config
from waterclock.model.errors import BadConfig
from waterclock.security.folder import folder_in_use

log = logging.getLogger(__name__)


def check_exposure(config: Config) -> None:
    """Raise BadConfig if a node would let other machines in without asking who they are."""
    host, is_insecure = config.server.host, config.server.insecure
    secured = folder_in_use(config)
    if secured is not None:
        if is_insecure:
            log.warning("insecure_ignored folder=%s: the node asks for credentials", secured.path)
    elif is_insecure:
        log.warning(
            "insecure host=%s: whoever reaches this node can read, publish and delete", host
        )
    elif not is_loopback(host):
        raise BadConfig(
            "server.host",
            f"{host} lets other machines in, and this node asks nobody for a credential: run "
            f"`waterclock secure init --data {config.node.data_folder}`, or start it with "
            "--insecure (server.insecure) if something else guards its ports",
        )


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach an address. A name that leads nowhere is no danger:
    it cannot be listened on, which is told where that is tried."""
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, 0, flags=socket.AI_PASSIVE)}
    except OSError:
        return True
    return all(ipaddress.ip_address(each.partition("%")[0]).is_loopback for each in found)
