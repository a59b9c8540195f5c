"""Names of models: folders, what was downloaded before, and a hub that answers, or does not."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
import time
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
        read_pretrained(name, read)


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

    assert read_pretrained(tmp_path, read) == read_pretrained("some/model", read) == "files"
    assert asked == [True, True]


CODE = """
import torch
from graspcl.errors import GraspError
from graspcl.model import Tokenizer, transformer_network
for make in (Tokenizer, lambda name: transformer_network(name, generator=torch.Generator().manual_seed(0))):
    try:
        make("some/model")
    except GraspError as error:
        print(error)
"""


def tried(endpoint: str, folder: Path) -> tuple[list[str], str]:
    """What is said about a model by name, where the hub is at `endpoint`, and what the libraries say beside it."""
    own = {"HF_ENDPOINT": endpoint, "HF_HOME": str(folder), "NO_PROXY": "*", "HF_HUB_OFFLINE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env={**os.environ, **own}, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines(), done.stderr


@needs_transformers
def test_a_hub_that_cannot_be_reached_is_asked_once(tmp_path: Path) -> None:
    said, noise = tried("http://127.0.0.1:9", tmp_path)
    wrong = (
        "there is no folder some/model, and the hub cannot be reached; give --network.model FOLDER, or leave "
        "network.model out for MiniLM, which comes by pip"
    )
    assert said == [wrong, wrong]
    assert noise == ""


class Hub(http.server.BaseHTTPRequestHandler):
    """A hub that knows no model."""

    requests = 0

    def do_GET(self) -> None:
        Hub.requests += "some/model" in self.path
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


class Mute(Hub):
    """A hub that takes its time."""

    def do_GET(self) -> None:
        Hub.requests += "some/model" in self.path
        time.sleep(60)


@pytest.fixture
def endpoint(request: pytest.FixtureRequest) -> Iterator[str]:
    Hub.requests = 0
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), request.param)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.socket.close()


@needs_transformers
@pytest.mark.parametrize(
    ("endpoint", "message"),
    [(Hub, "and no model of that name on the hub;"), (Mute, "and the hub cannot be reached;")],
    indirect=["endpoint"],
    ids=["unknown", "mute"],
)
def test_a_hub_is_asked_once(endpoint: str, message: str, tmp_path: Path) -> None:
    said, noise = tried(endpoint, tmp_path)
    assert len(said) == 2 and all(f"there is no folder some/model, {message}" in line for line in said)
    assert noise == ""
    assert Hub.requests == 2  # for the tokenizer, and for the encoder
