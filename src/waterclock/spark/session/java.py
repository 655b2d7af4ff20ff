"""The Java that Spark runs on: found before Spark is started, so that its lack is one clear line.

JAVA_HOME decides if it is set, else the `java` on the PATH. The version is read from the `release`
file that every JDK brings, which costs nothing; only a Java without one is started and asked.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from waterclock.model.errors import BadConfig

VERSION_MIN = 17
"""Spark 4 runs on nothing older."""
ANSWER_S_MAX = 20

_RELEASE = re.compile(r'^JAVA_VERSION="([^"]+)"', re.MULTILINE)
_ANSWER = re.compile(r'version "([^"]+)"')
_HINT = "install one (Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME to it"


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can run on."""

    command: Path
    version: str


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """Return the Java that Spark will start; raise BadConfig in one line if there is none."""
    given = os.environ if environment is None else environment
    home = given.get("JAVA_HOME")
    if home:
        command: str | None = str(Path(home, "bin", "java"))
        where = f"JAVA_HOME is {home}"
    else:
        command = shutil.which("java", path=given.get("PATH"))
        where = "JAVA_HOME is not set, and PATH"
    if command is None or not os.access(command, os.X_OK):
        raise _unusable(f"{where}, where there is no java")
    found = Path(command).resolve()
    version = _version_in_release(found) or _version_printed(found)
    if version is None:
        raise _unusable(f"{found} does not tell its version")
    if major_of(version) < VERSION_MIN:
        raise _unusable(f"{found} is Java {version}")
    return Java(found, version)


def major_of(version: str) -> int:
    """Return the number people know a Java by: 8 of "1.8.0_392", 17 of "17.0.15"; 0 if none."""
    numbers = [int(text) for text in re.findall(r"[0-9]+", version)[:2]]
    if len(numbers) == 2 and numbers[0] == 1:
        return numbers[1]
    return numbers[0] if numbers else 0


def _unusable(problem: str) -> BadConfig:
    return BadConfig("JAVA_HOME", f"Spark needs Java {VERSION_MIN} or newer; {problem}: {_HINT}")


def _version_in_release(command: Path) -> str | None:
    try:
        match = _RELEASE.search((command.parent.parent / "release").read_text(errors="replace"))
    except OSError:
        return None
    return None if match is None else match[1]


def _version_printed(command: Path) -> str | None:
    try:
        answer = subprocess.run(
            [command, "-version"],
            capture_output=True,
            text=True,
            timeout=ANSWER_S_MAX,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _ANSWER.search(answer.stderr + answer.stdout)
    return None if match is None else match[1]
