"""Instances of Compute Engine that run and bear a network tag, in all zones or some."""

import re
from collections.abc import Mapping

import google.auth
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import Request

from waterclock.cluster.gossip.providers import one_line
from waterclock.cluster.gossip.providers.answers import Answer, Question, pages

ENDPOINT = "https://compute.googleapis.com"
SCOPE = "https://www.googleapis.com/auth/compute.readonly"


def find(options: Mapping[str, str]) -> list[str]:
    """Return the addresses of the instances; raise OSError."""
    try:
        credentials, own_project = google.auth.default(scopes=[SCOPE])
        credentials.refresh(Request())  # type: ignore[no-untyped-call]
    except GoogleAuthError as error:
        raise OSError(one_line(error)) from error
    project = options.get("project_name") or own_project
    if not project:
        raise OSError("there is no project: name one as project_name=…")
    url = f"{options.get('endpoint', ENDPOINT)}/compute/v1/projects/{project}/aggregated/instances"
    # A zone that does not answer is no reason to know nothing of the others.
    asked = {"filter": "status=RUNNING", "returnPartialSuccess": "true"}

    def next_of(page: Answer) -> Question | None:
        token = page.get("nextPageToken")
        return Question(url, {**asked, "pageToken": token}) if token else None

    zones = re.compile(options.get("zone_pattern", ".*"))
    return [
        instance["networkInterfaces"][0]["networkIP"]
        for page in pages(str(credentials.token), Question(url, asked), next_of)
        for place, scope in page.get("items", {}).items()
        if zones.fullmatch(place.removeprefix("zones/"))
        for instance in scope.get("instances", ())
        if options["tag_value"] in instance.get("tags", {}).get("items", ())
    ]
