"""Whether a registry answers: only where it plainly does not may CI go without a server."""

import subprocess
import urllib.error
import urllib.request

ANSWER_S_MAX = 10
FALLBACK = {
    "debian": "http://deb.debian.org/debian/",
    "pypi": "https://pypi.org/simple/",
    "maven": "https://repo.maven.apache.org/maven2/",
    "npm": "https://registry.npmjs.org/",
}


def reason_to_skip(registry: str, absent: Exception) -> str:
    """Give the reason for a skip; it begins with `offline:` if the registry does not answer."""
    return str(absent) if answers(url_of(registry)) else f"offline: {registry}: {absent}"


def url_of(registry: str) -> str:
    """Give the address of a registry as this machine is set up."""
    if registry == "debian":
        command = ["apt-get", "indextargets", "--format", "$(SITE)"]
        try:
            sites = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        except OSError:
            sites = ""
        return next(iter(sites.split()), FALLBACK[registry])
    return FALLBACK[registry]


def answers(url: str) -> bool:
    """Tell whether something answers at an address, whatever it says."""
    try:
        urllib.request.urlopen(url, timeout=ANSWER_S_MAX).close()
    except urllib.error.HTTPError as answer:
        answer.close()
    except OSError:
        return False
    return True
