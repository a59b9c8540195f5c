"""The page of a run under way: served, followed, and ended with the run."""

import http.client
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request

import pytest
from browser import browser, why_not
from making import finish, make_run

from graspcl.cli.report import watch as command
from graspcl.errors import GraspError
from graspcl.report.html.reading import read_run
from graspcl.report.html.watch import at_work, duration, progress, watch

pytest.importorskip("plotly", reason="plotly is not installed")


class Watched:
    """A server in a thread."""

    def __init__(self, folder, refresh=0.2):
        told = threading.Event()
        self.address, self.end = "", None

        def tell(address):
            self.address = address
            told.set()

        def serve():
            self.end = watch(folder, tell, refresh=refresh)

        self.thread = threading.Thread(target=serve, daemon=True)
        self.thread.start()
        assert told.wait(10)
        self.host = self.address.removeprefix("http://").rstrip("/")

    def ask(self, path="/", method="GET", **headers):
        connection = http.client.HTTPConnection(self.host, timeout=10)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, body


def beat(folder, pid=None, **facts):
    """The progress.json of a process, by default this one."""
    known = {"pid": pid or os.getpid(), "host": socket.gethostname(), "time": time.time()}
    (folder / "progress.json").write_text(json.dumps({**known, **facts}))


def dead():
    """The number of a process that is no more."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


@pytest.fixture
def half(tmp_path):
    folder = make_run(tmp_path / "runs" / "half", sessions=4, done=2)
    beat(folder)
    return folder


def add_session(folder):
    """One more line."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    line = json.loads(lines[-1])
    line |= {"session": line["session"] + 1, "loss": 0.125}
    (folder / "metrics.jsonl").write_text("\n".join([*lines, json.dumps(line), ""]))


def test_progress_tells_sessions_accuracy_loss_and_time_left(half):
    text = progress(read_run(half))
    for said in ("2 of 4", "52.00 %", "40.00 %", "1.500", "5 s"):  # two sessions of 2.5 s are done, two to go
        assert f"<dd>{said}</dd>" in text
    assert text.count("<dd>5 s</dd>") == 2


def test_progress_tells_what_goes_on_within_a_session(tmp_path):
    folder = make_run(tmp_path / "begun", sessions=2, done=0)
    now = {"session": 1, "update": 30, "updates": 600, "loss": 0.4119, "seconds": 61.0, "seconds_left": 75.2}
    text = progress(read_run(folder), {**now, "done": 30, "total": 1400})
    for said in ("0 of 2", "30 of 600", "0.412", "1 min 1 s", "1 min 15 s"):
        assert f"<dd>{said}</dd>" in text
    assert "Updates of session 1" in text and '<progress max="1400" value="30"' in text
    assert "Under way" in text
    still = progress(read_run(folder), now, stopped=True)  # it goes on from a checkpoint, wherever that is
    assert "Stopped; the same command goes on." in still and "30 of 600" not in still


def test_progress_of_a_session_that_is_recorded_is_told_once(half):
    text = progress(read_run(half), {"session": 2, "update": 5, "updates": 5, "loss": 9.0, "seconds": 2.5})
    assert "<dd>1.500</dd>" in text and "Updates of session" not in text and "<dd>5 s</dd>" in text


def test_only_the_page_and_its_data_are_served_and_only_to_this_machine(half):
    server = Watched(half.parent)  # the run below it that is under way
    assert server.address.startswith("http://127.0.0.1:")
    status, page = server.ask()
    assert status == 200 and b"Progress" in page and b"connect-src &#x27;self&#x27;" in page
    status, data = server.ask("/data.json")
    assert status == 200
    assert json.loads(data)["finished"] is False
    for path in ("/config.toml", "/../config.toml", "/data.json?x", "/%2e%2e/"):
        assert server.ask(path)[0] == 404
    for method in ("POST", "PUT", "DELETE", "HEAD"):
        assert server.ask(method=method)[0] == 501
    assert server.ask(Host="evil.example")[0] == 403
    add_session(half)
    assert "3 of 4" in json.loads(server.ask("/data.json")[1])["body"]
    finish(half)
    assert json.loads(server.ask("/data.json")[1])["finished"] is True
    server.thread.join(10)
    assert not server.thread.is_alive()
    with pytest.raises(OSError):
        urllib.request.urlopen(server.address, timeout=2)


def test_it_ends_with_the_run_though_nobody_looks(half):
    server = Watched(half)
    finish(half)
    server.thread.join(10)
    assert not server.thread.is_alive() and server.end == "finished"


def test_a_process_is_at_work_if_it_lives_or_has_just_said_so():
    here = {"pid": os.getpid(), "host": socket.gethostname(), "time": 0.0}
    assert at_work(here) and not at_work({**here, "pid": dead()})
    assert not any(map(at_work, ({}, {**here, "pid": None}, {**here, "pid": -1}, {**here, "pid": 10**30})))
    elsewhere = {**here, "host": "elsewhere", "pid": dead()}
    assert at_work({**elsewhere, "time": time.time() - 30})
    assert not at_work({**elsewhere, "time": time.time() - 90}) and not at_work({**elsewhere, "time": None})


@pytest.mark.parametrize("how", ["killed", "given up"])
def test_it_ends_with_a_run_that_is_stopped(half, how):
    server = Watched(half)
    server.ask()
    assert json.loads(server.ask("/data.json")[1])["stopped"] is False
    if how == "killed":
        beat(half, pid=dead())
    else:
        (half / "progress.json").unlink()
    deadline, data = time.monotonic() + 10, {}
    while not data.get("stopped") and time.monotonic() < deadline:
        data = json.loads(server.ask("/data.json")[1])
    assert data["stopped"] and "Stopped; the same command goes on." in data["body"]
    server.thread.join(10)
    assert not server.thread.is_alive() and server.end == "stopped"


def test_a_moment_without_a_process_is_no_stop(half):
    server = Watched(half, refresh=1.0)
    (half / "progress.json").unlink()  # as just before the summary is there
    time.sleep(1.2)
    beat(half)
    time.sleep(1.2)
    assert server.thread.is_alive()
    finish(half)
    server.thread.join(10)
    assert server.end == "finished"


def test_the_terminal_says_how_it_ended(half, capsys):
    beat(half, pid=dead())  # stopped before anybody watched
    command(half, refresh=0.1)
    assert capsys.readouterr().out.endswith("the run is stopped; the same command goes on\n")


def test_a_browser_that_goes_leaves_no_traceback(half, capsys):
    server = Watched(half)
    host, _, port = server.host.rpartition(":")
    for read in (0, 1):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(f"GET / HTTP/1.1\r\nHost: {server.host}\r\n\r\n".encode())
            connection.recv(read)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset, not closed
    for _ in range(3):
        assert server.ask()[0] == 200
    finish(half)
    server.thread.join(10)
    assert capsys.readouterr().err == ""


def test_every_page_that_is_open_hears_of_the_end(half):
    server = Watched(half, refresh=1.0)
    server.ask()
    finish(half)
    for _ in range(2):  # two tabs, one after the other
        assert json.loads(server.ask("/data.json")[1])["finished"] is True
        time.sleep(1.2)
    server.thread.join(10)
    assert not server.thread.is_alive()


def test_the_version_changes_with_the_content_alone(half):
    server = Watched(half)

    def version():
        return json.loads(server.ask("/data.json")[1])["version"]

    first = version()
    beat(half)  # a later time, and nothing else
    assert version() == first
    beat(half, session=3, update=1, updates=5)
    second = version()
    add_session(half)
    assert len({first, second, version()}) == 3
    finish(half)
    server.thread.join(10)


def test_mistakes_are_answered(tmp_path):
    done = make_run(tmp_path / "done")
    (tmp_path / "empty").mkdir()
    for folder, message in (
        (done, "is finished; its report: graspcl report"),
        (tmp_path / "empty", "no unfinished run"),
        (tmp_path / "nowhere", "there is no folder"),
    ):
        with pytest.raises(GraspError, match=message):
            watch(folder, print)


def test_a_port_that_is_taken_is_named(half):
    server = Watched(half)
    port = int(server.host.rpartition(":")[2])
    with pytest.raises(GraspError, match=f"port {port} cannot be used"):
        watch(half, print, port=port)
    finish(half)
    server.thread.join(10)


def test_durations_are_for_people():
    assert [duration(seconds) for seconds in (0, 59.4, 60, 3600)] == ["0 s", "59 s", "1 min 0 s", "1 h 0 min"]


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_the_page_follows_the_run_without_being_loaded_again(half):
    with browser() as tab:
        server = Watched(half)
        tab.look()
        tab.open(server.address)
        tab.run("window.kept = document.querySelector('figure .chart'); window.same = true")
        assert "2 of 4" in tab.run("return document.querySelector('[data-part=progress]').innerText")
        add_session(half)
        for _ in range(3):
            tab.settle()
        assert "3 of 4" in tab.run("return document.querySelector('[data-part=progress]').innerText")
        assert tab.run("return window.same && window.kept.isConnected")  # the figures are the same elements
        finish(half)
        server.thread.join(15)
        assert not server.thread.is_alive()
        for _ in range(3):
            tab.settle()
        assert "Finished" in tab.run("return document.querySelector('[data-part=progress]').innerText")
        assert tab.run("return document.querySelectorAll('figure .main-svg').length") > 8
        assert [line for line in tab.complaints() if "favicon" not in line] == []
        assert {a.rpartition("/")[2] for a in tab.requests() if a.startswith("http")} == {"", "data.json"}


STATE = """
return {
  open: [...document.querySelectorAll('details')].map((one) => one.open),
  sorted: [...document.querySelectorAll('th[aria-sort]')].map((one) => one.getAttribute('aria-sort')),
  rows: [...document.querySelectorAll('table')].map((one) => one.innerText),
  focus: document.activeElement.innerText,
};
"""


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_what_the_reader_does_stays_while_the_page_follows(half):
    with browser() as tab:
        server = Watched(half)
        tab.look()
        tab.open(server.address)
        tab.run(
            "const box = document.querySelector('details'); box.open = true;"
            "const heads = box.querySelectorAll('th[data-place] button'); heads[0].click(); heads[0].click();"
            "heads[0].focus(); window.kept = box; window.first = document.querySelector('[data-part=progress]')"
        )
        before = tab.run(STATE)
        assert before["open"][0] and before["sorted"] == ["descending"] and before["focus"]
        tab.settle()  # nothing has changed
        assert tab.run(STATE) == before and tab.run("return window.kept.isConnected && window.first.isConnected")
        beat(half, session=3, update=1, updates=5)
        tab.settle()
        assert "1 of 5" in tab.run("return document.querySelector('[data-part=progress]').innerText")
        assert tab.run(STATE) == before and tab.run("return window.kept.isConnected && !window.first.isConnected")
        config = (half / "config.toml").read_text()
        (half / "config.toml").write_text(f"zebra = 7\n{config}")  # the table itself changes
        tab.settle()
        after = tab.run(STATE)
        assert not tab.run("return window.kept.isConnected") and any("zebra" in text for text in after["rows"])
        assert {**after, "rows": 0} == {**before, "rows": 0}
        names = tab.run(
            "return [...document.querySelector('details').querySelectorAll('tbody tr')].map(r => r.cells[0].innerText)"
        )
        assert names == sorted(names, reverse=True)
        finish(half)
        server.thread.join(15)


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_new_figures_come_and_the_reader_keeps_the_rest(tmp_path):
    folder = make_run(tmp_path / "begun", sessions=2, done=0)
    (folder / "predictions.npz").rename(tmp_path / "later.npz")
    beat(folder)
    with browser() as tab:
        server = Watched(folder)
        tab.look()
        tab.open(server.address)
        figures = "return document.querySelectorAll('figure .main-svg').length"
        before = tab.run(figures)
        tab.run("document.querySelector('details').open = true")
        (tmp_path / "later.npz").rename(folder / "predictions.npz")
        tab.settle()
        tab.settle()
        assert tab.run(figures) > before
        assert tab.run("return document.querySelector('details').open")
        finish(folder)
        server.thread.join(15)
