"""Instances of EC2 that run and bear a tag, in the region that is named or that this is."""

from collections.abc import Iterator, Mapping
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import Session, get_session
from botocore.utils import IMDSRegionProvider

from waterclock.cluster.gossip.providers import ADDRESS_KINDS, one_line

_KEY_OF = {"private_v4": "PrivateIpAddress", "public_v4": "PublicIpAddress"}
_CONFIG = Config(connect_timeout=2, read_timeout=5, retries={"total_max_attempts": 2})


def find(options: Mapping[str, str]) -> list[str]:
    """Return the addresses of the instances; raise OSError."""
    kind = options.get("addr_type", ADDRESS_KINDS[0])
    filters = [
        {"Name": f"tag:{options['tag_key']}", "Values": [options["tag_value"]]},
        {"Name": "instance-state-name", "Values": ["running"]},
    ]
    try:
        session = get_session()
        client = session.create_client(
            "ec2",
            region_name=options.get("region") or _own_region(session),
            endpoint_url=options.get("endpoint"),
            config=_CONFIG,
        )
        pages = client.get_paginator("describe_instances").paginate(Filters=filters)
        return [
            address
            for page in pages
            for reservation in page["Reservations"]
            for instance in reservation["Instances"]
            for address in _addresses(instance, kind)
        ]
    except (BotoCoreError, ClientError) as error:
        raise OSError(one_line(error)) from error


def _own_region(session: Session) -> str | None:
    """Return the region of the environment, or of the instance this is."""
    region: str | None = session.get_config_variable("region")
    return region or IMDSRegionProvider(session).provide()


def _addresses(instance: Mapping[str, Any], kind: str) -> Iterator[str]:
    if kind in _KEY_OF:
        if _KEY_OF[kind] in instance:
            yield instance[_KEY_OF[kind]]
        return
    for interface in instance.get("NetworkInterfaces", ()):
        for address in interface.get("Ipv6Addresses", ()):
            yield address["Ipv6Address"]
