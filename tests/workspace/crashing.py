"""Change a workspace in processes that are killed, or whose n-th call to the disk fails, and look at what they leave.

As a program this is a driver: it loads graspcl once and makes each change in a fork of itself. For failing calls,
`failing.c` is loaded before the C library, so that the calls of SQLite and of Python are counted alike.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

MODES = {"count": 0, "fail": 1, "kill": 2, "amid": 3, "full": 4}


class Driver:
    """Makes changes, each in a process of its own."""

    def __init__(self, place: Path | None = None, warm: Path | None = None) -> None:
        """Start the program that makes the changes.

        Args:
            place: where to compile the library to; without it, no call can fail.
            warm: a workspace that the program learns in once, so that all that a real `learn` needs is loaded.
        """
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # a process with threads cannot be forked
        if place is not None:
            source, library = Path(__file__).with_name("failing.c"), str(place / "failing.so")
            subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-w", "-o", library, source, "-ldl"], check=True)
            environment |= {"LD_PRELOAD": library, "FAILING": library}
        command = [sys.executable, __file__, *([] if warm is None else [str(warm)])]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        self._process = subprocess.Popen(command, env=environment, **pipes)
        while self.line() != "ready":
            pass

    def close(self) -> None:
        self._process.communicate()

    def start(self, change: str, folder: Path, mode: str = "count", call: int = 0, **more: Any) -> int:
        """Start a change, with a failure at one call; return the process."""
        job = {"change": change, "folder": str(folder), "mode": mode, "call": call, **more}
        print(json.dumps(job), file=self._process.stdin, flush=True)
        return int(self.line())

    def line(self) -> str:
        """The next line that the process says."""
        line = self._process.stdout.readline()
        assert line, "the driver has ended"
        return line.strip()

    def lines(self) -> Iterator[str]:
        """All that the process says until it ends; `exit CODE` is the last line."""
        while True:
            yield (line := self.line())
            if line.startswith("exit"):
                return

    def run(self, change: str, folder: Path, mode: str = "count", call: int = 0, **more: Any) -> list[str]:
        """Make a change; return all that the process says."""
        self.start(change, folder, mode, call, **more)
        return list(self.lines())


# -- a power failure --------------------------------------------------------------------------------------------------


class Disk:
    """What a disk holds while a recorded change is made: contents and names, as they are seen and as they will last.

    A content lasts after a sync of its file, a name after a sync of its folder. What was not synced may be on the disk
    or not.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = {path: number for number, path in enumerate(sorted(folder.rglob("*"))) if path.is_file()}
        self.contents = {number: path.read_bytes() for path, number in self.names.items()}
        self.lasting_names, self.lasting_contents = dict(self.names), dict(self.contents)

    def apply(self, kind: str, path: Path, other: Path, offset: int, data: bytes) -> None:
        if kind == "w":
            if path not in self.names:
                self.names[path] = max(self.contents, default=0) + 1
                self.contents[self.names[path]] = b""
                self.lasting_contents[self.names[path]] = b""
            old = self.contents[self.names[path]].ljust(offset, b"\0")
            self.contents[self.names[path]] = old[:offset] + data + old[offset + len(data) :]
        elif kind == "t" and path in self.names:
            self.contents[self.names[path]] = self.contents[self.names[path]][:offset].ljust(offset, b"\0")
        elif kind == "r":
            self.names[other] = self.names.pop(path)
        elif kind == "u":
            self.names.pop(path, None)
        elif kind == "s" and path in self.names:
            self.lasting_contents[self.names[path]] = self.contents[self.names[path]]
        elif kind == "s":
            self.lasting_names = {name: file for name, file in self.lasting_names.items() if name.parent != path}
            self.lasting_names |= {name: file for name, file in self.names.items() if name.parent == path}

    def write(self, place: Path, rng: np.random.Generator | None = None) -> None:
        """Write what is left after a power failure: what lasts alone, or with some of the rest."""
        shutil.rmtree(place, ignore_errors=True)

        def some() -> bool:
            return rng is not None and bool(rng.integers(2))

        folders = {path.parent: some() for path in {**self.names, **self.lasting_names}}
        for seen, names in ((True, self.names), (False, self.lasting_names)):
            for path, number in names.items():
                if folders[path.parent] is seen:
                    copy = place / path.relative_to(self.folder)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    copy.write_bytes((self.contents if some() else self.lasting_contents)[number])


def recorded(file: Path) -> list[tuple[str, Path, Path, int, bytes]]:
    """The calls that a change made, in their order."""
    found = []
    with open(file, "rb") as record:
        while line := record.readline():
            kind, path, other, offset, size = line.decode().rstrip("\n").split("\t")
            found.append((kind, Path(path), Path(other), int(offset), record.read(int(size))))
    return found


# -- the changes ------------------------------------------------------------------------------------------------------


def make(folder: Path) -> None:
    """A workspace of the versions 0, 1 and 2; version n holds n + 1 segments, of the rows 0, 1, … n."""
    from graspcl.workspace.store import Store

    with Store.create(folder, {"made": "for tests"}) as store:
        for _ in range(3):
            learn(store)


def learn(store: Any) -> None:
    """Add one segment, and new weights."""
    number = 0 if store.head is None else len(store.head.manifest["segments"])
    segments = [] if store.head is None else store.head.manifest["segments"]
    segment, weights = store.put({"rows": np.full(5, number)}), store.put({"weights": np.full(300, float(number))})
    store.commit("learn", {"rows": number}, {"segments": [*segments, segment], "weights": weights})


def forget(store: Any) -> None:
    """Keep the last segment alone, and no earlier version."""
    store.commit("forget", {}, {**store.head.manifest, "segments": store.head.manifest["segments"][-1:]}, True)


def seen(store: Any) -> list[int]:
    """The rows of the current version, from its segments, and its weights."""
    rows = [int(store.get(name)["rows"][0]) for name in store.head.manifest["segments"]]
    return [*rows, int(store.get(store.head.manifest["weights"])["weights"][0])]


def learn_texts(folder: Path, begin: int = 0, times: int = 1) -> None:
    """Learn six new texts of one class, and so on: a real change."""
    from made_up_texts import texts

    from graspcl import Workspace

    shop = Workspace.open(folder)
    for number in range(begin, begin + times):
        shop.learn(texts("car", 6 * number, 6 * number + 6), ["car"] * 6, updates=1, accept=True)
        _say(f"done {number}")


CHANGES = {"learn": learn, "undo": lambda store: store.undo(), "forget": forget}


def _say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def _child(job: dict[str, Any]) -> None:
    from graspcl.errors import GraspError
    from graspcl.workspace.store import Store

    folder = Path(job["folder"])
    if "FAILING" not in os.environ:
        learn_texts(folder, job["begin"], job["times"])
        return
    library = ctypes.CDLL(os.environ["FAILING"])
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC) if "log" in job else -1
    code = errno.ENOSPC if job["mode"] == "full" else errno.EIO
    library.arm(os.fsencode(folder), ctypes.c_long(job["call"]), MODES[job["mode"]], code, log)
    store = None
    try:
        if job["change"] == "learn texts":
            learn_texts(folder)
        else:
            with Store.open(folder, write=True) as store:
                for number in range(job.get("times", 1)):
                    CHANGES[job["change"]](store)
                    _say(f"done {number}")
    except GraspError as error:
        _say(f"refused {error}")
        if store is not None:
            _say(f"reads {seen(store)}")
    library.disarm()
    _say(f"calls {library.counted()}")


def _drive() -> None:
    import safetensors.torch  # loaded here, once
    import xxhash

    import graspcl.workspace.store

    del safetensors, xxhash, graspcl
    if len(sys.argv) > 1:
        learn_texts(Path(sys.argv[1]))
    _say("ready")
    for line in sys.stdin:
        pid = os.fork()
        if pid:
            _say(f"exit {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")
            continue
        try:
            _say(str(os.getpid()))
            _child(json.loads(line))
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)


if __name__ == "__main__":
    _drive()
