"""What the API of streams says to a request that came from another node, or that comes back."""

from waterclock.cluster.forwarded import NOT_OWNER
from waterclock.server.http.messages import Response

NOT_OWNER_HERE = Response(NOT_OWNER)
