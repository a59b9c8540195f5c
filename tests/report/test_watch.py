"""The page of a run under way: served, followed, and ended with the run."""

import http.client
import json
import threading
import urllib.request

import pytest
from browser import browser, why_not
from making import finish, make_run

from graspcl.errors import GraspError
from graspcl.report.html.reading import read_run
from graspcl.report.html.watch import duration, progress, watch

pytest.importorskip("plotly", reason="plotly is not installed")


class Watched:
    """A server in a thread."""

    def __init__(self, folder):
        told = threading.Event()
        self.address = ""

        def tell(address):
            self.address = address
            told.set()

        self.thread = threading.Thread(target=watch, args=(folder, tell), kwargs={"refresh": 0.2}, daemon=True)
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


@pytest.fixture
def half(tmp_path):
    return make_run(tmp_path / "runs" / "half", sessions=4, done=2)


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
    assert not server.thread.is_alive()


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
