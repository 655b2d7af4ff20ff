"""HTTP/1.1 on asyncio: connections, parsing, routes, checks and the OpenAPI description."""
