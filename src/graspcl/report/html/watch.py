"""The page of a run under way, served to this machine alone, until the run is finished."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from graspcl.errors import GraspError
from graspcl.report.html.page import Report, as_bytes, content, render
from graspcl.report.html.parts import safe
from graspcl.report.html.reading import Run, number, read_run

_CHANGING = ("metrics.jsonl", "predictions.npz", "summary.json", "config.toml")


def watch(run: Path, tell: Callable[[str], None], port: int = 0, refresh: float = 3.0) -> None:
    """Serve the page of a run on 127.0.0.1, `tell` its address, and return once the run is finished.

    `run` is its folder, or one above it: then the run below it that was last at work. The last state is still served
    to a browser that has the page open. Port 0 is any free one.
    """
    live = Live(_under_way(run), refresh)
    if live.finished():
        raise GraspError(f"the run in {live.path} is finished; its report: graspcl report '{live.path}'")
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), _handler(live))
    except (OSError, OverflowError) as error:
        raise GraspError(f"port {port} cannot be used: {error}; without --port any free one is taken") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        tell(f"http://127.0.0.1:{server.server_port}/")
        while not live.finished():
            time.sleep(min(1.0, refresh))
        if live.asked:  # a page is open: it asks once more
            live.told.wait(timeout=3 * refresh)
    finally:
        server.shutdown()
        server.server_close()


class Live:
    """A run's page and its data, made anew whenever its files have changed."""

    def __init__(self, path: Path, refresh: float = 3.0) -> None:
        self.path, self.refresh = path, refresh
        self.asked, self.told = False, threading.Event()
        self._lock = threading.Lock()
        self._seen: Any = None
        self._data: dict[str, Any] = {}

    def finished(self) -> bool:
        """Whether the run is."""
        return (self.path / "summary.json").exists()

    def page(self) -> bytes:
        """As HTML."""
        self.asked = True
        run = read_run(self.path)
        return as_bytes(render(Report([run]), progress(run), self.refresh))

    def data(self) -> bytes:
        """What of the page changes, as JSON."""
        with self._lock:
            files = [self.path / name for name in _CHANGING]
            seen = [(file.stat().st_mtime_ns, file.stat().st_size) for file in files if file.exists()]
            if seen != self._seen:
                finished, run = self.finished(), read_run(self.path)
                self._data = {**content(Report([run]), progress(run)), "finished": finished}
                self._seen = seen
            return json.dumps(self._data, allow_nan=False).encode()

    def sent(self) -> None:
        """The data have reached a browser; if they were the last ones, nothing is left to do."""
        if self._data.get("finished"):
            self.told.set()


def progress(run: Run) -> str:
    """How far a run is, as HTML: sessions, the last loss and accuracies, time so far and what may be left of it."""
    done, total = run.sessions
    lines = run.record.sessions
    last = lines[-1] if lines else {}
    spent = [number(line.get("training_seconds")) + number(line.get("selection_seconds")) for line in lines]
    spent = [seconds for seconds in spent if not math.isnan(seconds)]
    left = math.nan
    if total is not None and spent:
        recent = spent[-3:]  # sessions grow with the buffer: the last ones tell more than all
        left = max(0, total - done) * sum(recent) / len(recent)
    facts = {
        "Sessions": f"{done} of {'?' if total is None else total}",
        "Accuracy before rehearsal": _said(last.get("accuracy_before_rehearsal"), " %"),
        "Accuracy after rehearsal": _said(last.get("accuracy"), " %"),
        "Loss": _said(last.get("loss"), "", 3),
        "Rehearsed for": duration(sum(spent)),
        "About to go": "–" if run.finished or math.isnan(left) else duration(left),
    }
    said = "".join(f"<div><dt>{name}</dt><dd>{safe(text)}</dd></div>" for name, text in facts.items())
    state = "Finished." if run.finished else "Under way; this page follows it."
    return (
        f'<section class="card" data-part="progress"><h2>Progress</h2><p class="about">{state}'
        " <span data-lost hidden>The connection is lost.</span></p>"
        f'<progress max="{total or max(1, done)}" value="{done}" aria-label="sessions"></progress>'
        f'<dl class="facts">{said}</dl></section>'
    )


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(5.2), duration(75), duration(7260)
    ('5 s', '1 min 15 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _said(value: Any, unit: str, digits: int = 2) -> str:
    found = number(value)
    return "–" if math.isnan(found) else f"{found:.{digits}f}{unit}"


def _under_way(path: Path) -> Path:
    if not path.is_dir():
        raise GraspError(f"there is no folder {path}")
    if (path / "config.toml").exists():
        return path
    found = [file.parent for file in path.rglob("config.toml") if not (file.parent / "summary.json").exists()]
    if not found:
        raise GraspError(f"there is no unfinished run in {path}; a run is watched by its folder, with its config.toml")
    return max(found, key=_changed)


def _changed(folder: Path) -> float:
    return max(file.stat().st_mtime for file in (folder / name for name in _CHANGING) if file.exists())


def _handler(live: Live) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers GET of the page and of its data, and nothing else."""

        def do_GET(self) -> None:
            _, port, *_ = self.connection.getsockname()
            if self.headers.get("Host") not in (f"127.0.0.1:{port}", f"localhost:{port}"):
                self.send_error(HTTPStatus.FORBIDDEN)  # another site's name for this machine
            elif self.path == "/":
                self._send(live.page(), "text/html; charset=utf-8")
            elif self.path == "/data.json":
                self._send(live.data(), "application/json")
                live.sent()
            else:
                self.send_error(HTTPStatus.NOT_FOUND)

        def _send(self, body: bytes, kind: str) -> None:
            self.send_response(HTTPStatus.OK)
            for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))),
                                ("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff")):  # fmt: skip
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """No line per request."""

    return Handler
