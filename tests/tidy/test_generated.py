"""The generated code is current: gRPC's as proto/ says, the blocking client as the asyncio one."""

import os
import subprocess
import sys
from pathlib import Path

from tools import sync_client

ROOT = Path(__file__).parents[2]
PLUGINS = Path(sys.executable).parent


def generated(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in sorted(folder.glob("*_pb2*"))}


def generate(protos: Path, target: Path) -> dict[str, str]:
    names = sorted(str(file) for file in protos.rglob("*.proto"))
    outs = [f"--{plugin}_out={target}" for plugin in ("python", "grpc_python")]
    outs += [f"--{plugin}_out=quiet:{target}" for plugin in ("mypy", "mypy_grpc")]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(protos), *outs, *names]
    path = f"{PLUGINS}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(command, check=True, env={**os.environ, "PATH": path})
    return generated(target / "waterclock" / "v1")


def test_grpc_code_is_what_proto_says(tmp_path):
    fresh = generate(ROOT / "proto", tmp_path)

    assert fresh
    assert fresh == generated(ROOT / "src" / "waterclock" / "v1"), "run `make proto`"


def test_the_blocking_client_is_what_the_asyncio_client_says():
    folder = ROOT / "src" / "waterclock" / "client" / "_sync"
    files = {file: file.read_text() for file in folder.glob("*.py") if file.stem != "__init__"}

    assert sync_client.generated() == files, "run `make sync`"
