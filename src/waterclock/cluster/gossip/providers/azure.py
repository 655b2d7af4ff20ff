"""Network interfaces of Azure that bear a tag, or those of a scale set of virtual machines."""

from collections.abc import Mapping

from azure.core.exceptions import AzureError
from azure.identity import DefaultAzureCredential

from waterclock.cluster.gossip.providers import one_line
from waterclock.cluster.gossip.providers.answers import Answer, Question, pages

ENDPOINT = "https://management.azure.com"
NETWORK_VERSION = "2024-05-01"
SCALE_SET_VERSION = "2018-10-01"
"""The one in which interfaces of scale sets are listed."""


def find(options: Mapping[str, str]) -> list[str]:
    """Return the addresses of the interfaces; raise OSError."""
    endpoint = options.get("endpoint", ENDPOINT)
    try:
        with DefaultAzureCredential() as credential:
            token = credential.get_token(f"{endpoint}/.default").token
    except AzureError as error:
        raise OSError(one_line(error)) from error
    first = _first(f"{endpoint}/subscriptions/{options['subscription_id']}", options)
    return [
        configuration["properties"]["privateIPAddress"]
        for page in pages(token, first, _next_of)
        for interface in page["value"]
        if "vm_scale_set" in options or _bears(interface, options)
        for configuration in interface["properties"]["ipConfigurations"]
        if "privateIPAddress" in configuration["properties"]
    ]


def _first(subscription: str, options: Mapping[str, str]) -> Question:
    if "vm_scale_set" in options:
        owner = f"Microsoft.Compute/virtualMachineScaleSets/{options['vm_scale_set']}"
        group = f"{subscription}/resourceGroups/{options['resource_group']}"
        url, version = f"{group}/providers/{owner}", SCALE_SET_VERSION
    else:
        url, version = f"{subscription}/providers/Microsoft.Network", NETWORK_VERSION
    return Question(f"{url}/networkInterfaces", {"api-version": version})


def _bears(interface: Answer, options: Mapping[str, str]) -> bool:
    tags: Mapping[str, str] = interface.get("tags", {})
    return tags.get(options["tag_name"]) == options["tag_value"]


def _next_of(page: Answer) -> Question | None:
    link = page.get("nextLink")
    return Question(link, {}) if link else None
