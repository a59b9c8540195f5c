"""Names of models: folders, what was downloaded before, and a hub that answers, or does not."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from graspcl.errors import GraspError
from graspcl.model import Tokenizer, transformer_network
from graspcl.model.texts import read_pretrained

needs_transformers = pytest.mark.skipif(find_spec("transformers") is None, reason="needs graspcl[text]: transformers")


@pytest.mark.parametrize("name", ["/nonexistent/folder", "./nowhere", "../nowhere", "~/nowhere", "a/b/c", Path("here")])
def test_what_is_a_path_is_never_looked_up(name: str | Path) -> None:
    def read(local: bool) -> str:
        raise AssertionError("there is nothing to read")

    with pytest.raises(GraspError, match=f"^there is no folder {name}$"):
        read_pretrained(name, "files", read)


@needs_transformers
def test_a_folder_that_is_not_there_is_said_to_be_so() -> None:
    with pytest.raises(GraspError, match=r"^there is no folder /nonexistent/folder$"):
        Tokenizer("/nonexistent/folder")
    with pytest.raises(GraspError, match=r"^there is no folder /nonexistent/folder$"):
        transformer_network("/nonexistent/folder", generator=torch.Generator().manual_seed(0))


def test_the_hub_is_asked_only_for_what_is_not_here(tmp_path: Path) -> None:
    asked: list[bool] = []

    def read(local: bool) -> str:
        asked.append(local)
        return "files"

    for source in (tmp_path, "some/model"):
        assert read_pretrained(source, "files", read) == "files"
    assert asked == [True, True]


CODE = """
import json, sys
import torch
from huggingface_hub import hf_api
from graspcl.errors import GraspError
from graspcl.model import Tokenizer, texts, transformer_network
texts._HUB_TIMEOUT = 0.5
said = []
for endpoint in sys.argv[1:]:
    hf_api.api.endpoint = endpoint
    for make in (Tokenizer, lambda name: transformer_network(name, generator=torch.Generator().manual_seed(0))):
        try:
            make("some/model")
        except GraspError as error:
            said.append(str(error))
print(json.dumps(said))
"""


class Hub(http.server.BaseHTTPRequestHandler):
    """A hub that knows no model."""

    requests = 0

    def do_GET(self) -> None:
        type(self).requests += "some/model" in self.path
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


class Mute(Hub):
    """A hub that does not answer before the test ends."""

    requests = 0
    ended = threading.Event()

    def do_GET(self) -> None:
        type(self).requests += "some/model" in self.path
        self.ended.wait(60)


@pytest.fixture
def endpoints() -> Iterator[list[str]]:
    """Hubs that know no model, do not answer, and are not there."""
    servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), hub) for hub in (Hub, Mute)]
    for server in servers:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield [*(f"http://127.0.0.1:{server.server_port}" for server in servers), "http://127.0.0.1:9"]
    Mute.ended.set()
    for server in servers:
        server.shutdown()
        server.socket.close()


@needs_transformers
def test_a_hub_is_asked_once_and_what_is_wrong_is_said(endpoints: list[str], tmp_path: Path) -> None:
    """In a process of its own, which shows what the libraries print as well."""
    own = {"HF_HOME": str(tmp_path), "NO_PROXY": "*", "HF_HUB_OFFLINE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", CODE, *endpoints], env={**os.environ, **own}, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    instead = "give --network.model FOLDER, or leave network.model out for MiniLM, which is installed with pip"
    unknown = f"there is no folder some/model, and no model of that name on the hub; {instead}"
    unreached = f"there is no folder some/model, and the hub cannot be reached; {instead}"
    assert json.loads(done.stdout) == [unknown] * 2 + [unreached] * 4
    assert (Hub.requests, Mute.requests) == (2, 2)  # for the tokenizer, and for the encoder
