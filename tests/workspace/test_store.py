"""A store keeps versions and their objects; readers see one moment, and one process writes."""

import collections
import contextlib
import errno
import itertools
import os
import shutil
import sqlite3
import subprocess
import time

import numpy as np
import pytest
import torch

from graspcl.errors import GraspError
from graspcl.workspace import journal
from graspcl.workspace.store import Store


@pytest.fixture
def shop(tmp_path):
    """A workspace of two versions: rows 0 1 2, then 3 more."""
    with Store.create(tmp_path / "shop", {"network": "wide"}) as store:
        first = store.put({"rows": np.arange(3), "weights": {"w": torch.ones(2, dtype=torch.bfloat16)}})
        store.commit("new", {"samples": 3}, {"segments": [first], "weights": store.put({"w": [1.5]})})
        second = store.put({"rows": np.arange(3, 6)})
        store.commit("learn", {"samples": 6}, {"segments": [first, second], "weights": store.put({"w": [2.5]})})
    return tmp_path / "shop"


def rows(store):
    return [int(row) for name in store.head.manifest["segments"] for row in store.get(name)["rows"]]


def test_what_is_committed_is_read_again(shop):
    with Store.open(shop) as store:
        assert store.format == {"network": "wide"} and rows(store) == [0, 1, 2, 3, 4, 5]
        assert [(one.number, one.parent, one.verb, one.summary) for one in store.versions()] == [
            (1, 0, "learn", {"samples": 6}), (0, None, "new", {"samples": 3}),
        ]  # fmt: skip
        weights = store.get(store.head.manifest["segments"][0])["weights"]["w"]
        assert weights.dtype == torch.bfloat16 and store.verify() == []


def test_undo_moves_back_and_is_an_entry_of_its_own(shop):
    with Store.open(shop, write=True) as store:
        assert store.undo().number == 0 and rows(store) == [0, 1, 2]
        with pytest.raises(GraspError, match="nothing to undo"):
            store.undo()
        again = store.commit("learn", {}, {"segments": []})
        assert (again.number, again.parent) == (2, 0)
    with Store.open(shop) as store:
        assert [one.verb for one in store.entries()] == ["learn", "undo", "learn", "new"]
        assert [one.number for one in store.versions()] == [2, 0]


def test_equal_content_is_stored_once(shop):
    with Store.open(shop, write=True) as store:
        size = store.size()
        assert store.put({"rows": np.arange(3, 6)}) == store.head.manifest["segments"][1]
        assert store.size() == size


def test_a_damaged_object_is_replaced_when_it_is_put_again(shop):
    with Store.open(shop, write=True) as store:
        (shop / "objects").joinpath(*place(store.head.manifest["segments"][1])).write_bytes(b"x")
        assert len(store.verify()) == 1
        store.put({"rows": np.arange(3, 6)})
        assert store.verify() == []


def test_clean_removes_what_was_undone_and_what_was_never_committed(shop):
    with Store.open(shop, write=True) as store:
        left = store.put({"rows": np.arange(9)})
        undone = store.head.manifest["segments"][1]
        sizes = [shop.joinpath("objects", *place(name)).stat().st_size for name in (left, undone)]
        assert store.clean() == sizes[0] and rows(store) == [0, 1, 2, 3, 4, 5]
        store.undo()
        assert store.clean() > sizes[1] and rows(store) == [0, 1, 2] and store.verify() == []
    with Store.open(shop) as store:
        assert [one.number for one in store.versions()] == [0]


def test_a_dropped_history_is_gone_from_all_files_and_cannot_be_undone(shop):
    with Store.open(shop, write=True) as store:
        store.commit("learn", {"about": "SECRET"}, {"segments": [store.put({"name": "SECRET"})]})
        store.commit("learn", {}, {"segments": []})
        assert {"workspace.db", "workspace.backup"} < {*holding(shop, b"SECRET")}
        kept = store.put({"rows": np.arange(1)})
        store.commit("forget", {}, {"segments": [kept]}, keep=1)
        assert not holding(shop, b"SECRET") and len(list(shop.glob("objects/*/*"))) == 1
        with pytest.raises(GraspError, match=r"'forget' of .* cannot be undone"):
            store.undo()
        assert store.verify() == []


def test_a_process_killed_before_it_removed_dropped_files_has_them_removed_by_the_next_writer(shop, monkeypatch):
    with Store.open(shop, write=True) as store, monkeypatch.context() as killed:
        killed.setattr(Store, "clean", lambda self: None)
        store.commit("forget", {}, {"segments": [store.put({"rows": np.arange(1)})]}, keep=1)
    assert len(list(shop.glob("objects/*/*"))) == 5
    with Store.open(shop, write=True):
        assert len(list(shop.glob("objects/*/*"))) == 1


def test_a_change_is_done_although_what_it_drops_cannot_be_removed(shop):
    (shop / "workspace.backup").unlink()
    os.mkfifo(shop / "workspace.backup")  # so cleaning up fails
    with Store.open(shop, write=True) as store:
        before = len(store.versions())
        store.commit("rename", {}, store.head.manifest, keep=2)
        assert before > 1 and len(store.versions()) == 2 and store.head.verb == "rename"
        with pytest.raises(GraspError, match=r"'forget' is done, but files of dropped versions are still there"):
            store.commit("forget", {}, {"segments": []}, keep=1)
        assert store.head.verb == "forget" and list(shop.glob("objects/*/*"))
    (shop / "workspace.backup").unlink()
    with Store.open(shop, write=True) as store:
        assert store.head.verb == "forget" and not list(shop.glob("objects/*/*"))


def test_a_folder_in_use_is_not_made_a_workspace(shop, tmp_path):
    with pytest.raises(GraspError, match="not empty"):
        Store.create(shop, {})
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").touch()
    with pytest.raises(GraspError, match="not empty"):
        Store.create(tmp_path / "photos", {})
    assert sorted(path.name for path in (tmp_path / "photos").iterdir()) == ["a.jpg"]
    with pytest.raises(GraspError, match="not a workspace"):
        Store.open(tmp_path / "photos")


def test_a_workspace_that_was_left_before_its_first_version_is_made_again(tmp_path):
    with Store.create(tmp_path / "shop", {"network": "wide"}) as store:
        store.put({"rows": np.arange(3)})
        assert store.head is None and store.versions() == []
    with Store.create(tmp_path / "shop", {"network": "deep"}) as store:
        assert store.format == {"network": "deep"}
        store.commit("new", {}, {})
    with pytest.raises(GraspError, match="not empty"):
        Store.create(tmp_path / "shop", {})


def test_a_workspace_that_cannot_be_begun_leaves_nothing(tmp_path, monkeypatch):
    def full(*given):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("graspcl.workspace.journal.create", full)
    with pytest.raises(GraspError, match="No space left"):
        Store.create(tmp_path / "shop", {})
    assert not (tmp_path / "shop").exists()


def test_a_moved_or_copied_workspace_is_the_same(shop, tmp_path):
    shutil.copytree(shop, tmp_path / "copy")
    shop.rename(tmp_path / "moved")
    for folder in (tmp_path / "copy", tmp_path / "moved"):
        with Store.open(folder, write=True) as store:
            assert rows(store) == [0, 1, 2, 3, 4, 5] and store.verify() == []
            store.undo()


def test_a_second_writer_is_told_who_writes(shop):
    with Store.open(shop, write=True), pytest.raises(GraspError, match=f"written by process {os.getpid()} on"):
        Store.open(shop, write=True)


def test_a_second_writer_waits(shop, monkeypatch):
    first = Store.open(shop, write=True)
    monkeypatch.setattr(time, "sleep", lambda seconds: first.close())
    with Store.open(shop, write=True, wait=60) as store:
        store.undo()


def test_without_locks_the_second_commit_is_refused(shop, monkeypatch):
    monkeypatch.setattr("graspcl.workspace.lock._taken", lambda opened: True)
    with Store.open(shop, write=True) as first, Store.open(shop, write=True) as second:
        first.commit("learn", {}, {"segments": []})
        with pytest.raises(GraspError, match="another process changed it"):
            second.commit("learn", {}, {"segments": []})
        assert rows(second) == [0, 1, 2, 3, 4, 5]  # still reads what it opened
    with Store.open(shop) as store:
        assert store.head.number == 2 and store.verify() == []


def test_readers_go_on_during_a_write(shop):
    with contextlib.closing(sqlite3.connect(shop / "workspace.db", isolation_level=None)) as writing:
        writing.execute("BEGIN IMMEDIATE")
        writing.execute("DELETE FROM versions")
        with Store.open(shop) as store:
            assert rows(store) == [0, 1, 2, 3, 4, 5]
        writing.execute("ROLLBACK")
    with Store.open(shop) as reader, Store.open(shop, write=True) as writer:
        writer.commit("learn", {}, {"segments": []})
        assert rows(reader) == [0, 1, 2, 3, 4, 5] and rows(writer) == []


def test_a_reader_cannot_write(shop):
    with Store.open(shop) as store, pytest.raises(GraspError, match="write=True"):
        store.undo()


def test_a_newer_workspace_is_refused(shop, monkeypatch):
    monkeypatch.setattr(journal, "FORMAT", 2)
    with Store.create(shop.with_name("newer"), {}) as store:
        store.commit("new", {}, {})
    monkeypatch.undo()
    before = contents(shop.with_name("newer"))
    for write in (False, True):
        with pytest.raises(GraspError, match=r"newer version of graspcl \(format 2"):
            Store.open(shop.with_name("newer"), write=write)
    assert {**contents(shop.with_name("newer")), "lock": b""} == {**before, "lock": b""}


def test_after_a_violated_invariant_it_reads_and_refuses_to_write(shop):
    with Store.open(shop, write=True) as store:
        name = store.put({"rows": np.arange(9)})
        shop.joinpath("objects", *place(name)).unlink()
        for _ in range(2):
            with pytest.raises(GraspError, match=r"can be read but not written: .* is missing"):
                store.commit("learn", {}, {"segments": [name]})
        with pytest.raises(GraspError, match="can be read but not written"):
            store.undo()
        assert rows(store) == [0, 1, 2, 3, 4, 5]


def test_a_change_by_another_program_is_found(shop):
    with contextlib.closing(sqlite3.connect(shop / "workspace.db")) as other:
        other.execute("UPDATE versions SET summary = '{}' WHERE number = 0")
        other.commit()
    with Store.open(shop) as store:
        assert store.problems and rows(store) == [0, 1, 2, 3, 4, 5]  # from the backup
        assert store.versions()[1].summary == {"samples": 3}
    with pytest.raises(GraspError, match=r"not written: .*workspace.db is damaged: a row does not match its checksum"):
        Store.open(shop, write=True)


def test_a_removed_row_is_found(shop):
    with contextlib.closing(sqlite3.connect(shop / "workspace.db")) as other:
        other.execute("DELETE FROM versions WHERE number = 0")
        other.commit()
    with Store.open(shop) as store:
        assert "rows are missing" in store.problems[0] and len(store.versions()) == 2


def test_damage_beside_the_rows_is_found_before_a_write(shop):
    damage_pages(shop / "workspace.db")
    with Store.open(shop) as store:
        assert rows(store) == [0, 1, 2, 3, 4, 5] and len(store.verify()) == 1
    with pytest.raises(GraspError, match=r"can be read but not written: .*workspace\.db is damaged: .*Fragmentation"):
        Store.open(shop, write=True)


def test_with_a_damaged_object_the_version_before_still_reads(shop):
    with Store.open(shop) as store:
        file = shop.joinpath("objects", *place(store.head.manifest["segments"][1]))
        file.write_bytes(file.read_bytes()[:-1])
        with pytest.raises(GraspError, match=f"{file.name} is damaged"):
            rows(store)
        assert store.last_good().number == 0
        assert store.verify() == [f"{file} is damaged: its content does not match its name"]


def test_damage_names_the_way_out_and_is_mended_with_a_copy(shop, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(shop, copy)
    with Store.open(shop, write=True) as store:
        paths = [
            store._objects.path(store.head.manifest["weights"]),
            store._objects.path(store.head.manifest["segments"][0]),
        ]
        paths[0].write_bytes(b"damaged")
        assert "take the last change back with `graspcl undo`, or restore files from a copy" in store.way_out()
        paths[1].unlink()
        assert store.way_out() == f"restore files from a copy with `graspcl verify {shop} --restore COPY`"
        (copy / paths[1].relative_to(shop)).write_bytes(b"damaged as well")
        assert store.restore(copy) == 1 and [paths[1].name in line for line in store.verify()] == [True]
        shutil.copytree(tmp_path / "copy", tmp_path / "empty", ignore=shutil.ignore_patterns("*.safetensors"))
        assert store.restore(tmp_path / "empty") == 0


def damage_row(file):
    """Change one bit of a row: SQLite reads it, and its checksum tells."""
    content = bytearray(file.read_bytes())
    content[content.index(b"samples")] ^= 1
    file.write_bytes(content)


def damage_pages(file):
    with contextlib.closing(sqlite3.connect(file)) as other:
        ((page,),) = other.execute("SELECT rootpage FROM sqlite_master WHERE name = 'versions'")
        ((size,),) = other.execute("PRAGMA page_size")
    content = bytearray(file.read_bytes())
    content[(page - 1) * size + 7] = 50  # the number of free bytes between rows, as SQLite notes it
    file.write_bytes(content)


def unlink(file):
    file.unlink()


@pytest.mark.parametrize("name", ["workspace.db", "workspace.backup"])
@pytest.mark.parametrize("damage", [damage_row, damage_pages, unlink])
def test_a_damaged_journal_is_written_again_from_the_other_file(shop, name, damage):
    damage(shop / name)
    (shop / f"{name}-journal").write_bytes(b"of the damaged file")
    mended = f"`graspcl verify {shop} --restore {shop}` writes workspace.db or workspace.backup again"
    with Store.open(shop) as store:
        assert len(store.verify()) == 1 and store.way_out().startswith(mended)
        assert rows(store) == [0, 1, 2, 3, 4, 5]
    if name == "workspace.db":
        with pytest.raises(GraspError, match=f"can be read but not written: .*workspace.db is damaged.*{mended}"):
            Store.open(shop, write=True)
    with Store.open(shop, write=True, damaged=True) as store:
        assert store.restore(shop) == 1 and store.verify() == []
    with Store.open(shop, write=True) as store:
        assert rows(store) == [0, 1, 2, 3, 4, 5] and store.problems == [] and len(store.versions()) == 2
        store.commit("learn", {}, {"segments": []})
        assert store.undo().number == 1 and store.verify() == []


def test_a_journal_without_a_sound_backup_comes_from_a_copy(shop, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(shop, copy)
    for name in ("workspace.db", "workspace.backup"):
        damage_row(shop / name)
    with pytest.raises(GraspError, match="nothing of the workspace can be read"):
        Store.open(shop, write=True, damaged=True)
    with Store.open(shop, write=True, damaged=True, copy=copy) as store:
        assert store.restore(copy) == 2 and store.verify() == []
    with Store.open(shop, write=True) as store:
        assert rows(store) == [0, 1, 2, 3, 4, 5] and store.problems == []


def test_rows_that_can_be_read_are_not_replaced_by_an_older_backup(shop):
    older = (shop / "workspace.backup").read_bytes()
    with Store.open(shop, write=True) as store:
        store.commit("learn", {}, {"segments": []})
    (shop / "workspace.backup").write_bytes(older)
    damage_pages(shop / "workspace.db")
    with Store.open(shop, write=True, damaged=True) as store:
        with pytest.raises(GraspError, match="can be read but not written"):
            store.undo()  # until it is restored
        assert store.restore(shop) == 1 and store.head.number == 2
    with Store.open(shop, write=True) as store:
        assert store.head.number == 2 and store.verify() == []


def test_a_damaged_journal_and_lost_objects_are_restored_together(shop, tmp_path):
    shutil.copytree(shop, tmp_path / "copy")
    damage_row(shop / "workspace.db")
    next(shop.glob("objects/*/*")).unlink()
    with Store.open(shop, write=True, damaged=True) as store:
        assert store.way_out() == f"restore files from a copy with `graspcl verify {shop} --restore COPY`"
        assert store.restore(tmp_path / "copy") == 2 and store.verify() == []
    with Store.open(shop) as store, pytest.raises(GraspError, match="open it with write=True"):
        store.restore(tmp_path / "copy")


def test_damage_of_what_was_undone_does_not_matter(shop):
    with Store.open(shop, write=True) as store:
        store._objects.path(store.head.manifest["weights"]).write_bytes(b"damaged")
        assert len(store.verify()) == 1
        store.undo()
        assert store.verify() == []


def test_swapped_objects_are_found(shop):
    first, second, *_ = shop.glob("objects/*/*")
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    with Store.open(shop) as store:
        assert len(store.verify()) == 2


@pytest.mark.parametrize("name", ["object:../../../../etc/passwd", "", "object:" + "0" * 31, "object:" + "0" * 32])
def test_names_lead_nowhere_else(shop, name):
    with Store.open(shop) as store, pytest.raises(GraspError, match=r"not the name of an object|is missing"):
        store.get(name)


def test_a_summary_may_have_numbers_that_are_none(shop):
    with Store.open(shop, write=True) as store:
        store.commit("learn", {"accuracy": float("nan")}, {"segments": []})
        store.commit("learn", {}, {"segments": []})


def test_a_full_disk_is_told(tmp_path):
    (tmp_path / "disk").mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(tmp_path / "disk")]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small tmpfs is not permitted")
    try:
        with Store.create(tmp_path / "disk" / "shop", {}) as store:
            store.commit("new", {}, {"segments": [store.put({"rows": np.arange(3)})]})
            with pytest.raises(GraspError, match="No space left"):
                store.put({"rows": np.arange(99_999)})
            assert store.clean() == 0  # no part of it is left
            (tmp_path / "disk" / "rest").write_bytes(bytes(shutil.disk_usage(tmp_path / "disk").free))
            with pytest.raises(GraspError, match=r"disk is full|No space left"):
                store.commit("learn", {"large": "x" * 99_999}, {"segments": []})
            assert rows(store) == [0, 1, 2] and store.verify() == []
            (tmp_path / "disk" / "rest").unlink()
            store.commit("learn", {}, {"segments": []})  # goes on
    finally:
        subprocess.run(["umount", str(tmp_path / "disk")], check=True)


@pytest.mark.xdist_group("rights")  # of folders above that tests share
def test_a_read_only_folder_is_read(shop):
    with Store.open(shop) as store:
        rows(store)  # loads all that the child needs
    assert without_rights(shop, lambda: read_only(shop, [0, 1, 2, 3, 4, 5])) == "fine"


@pytest.mark.xdist_group("rights")  # of folders above that tests share
def test_a_read_only_folder_with_an_unfinished_transaction_is_read(shop):
    with contextlib.closing(sqlite3.connect(shop / "workspace.db", isolation_level=None)) as writing:
        writing.execute("PRAGMA cache_size=1")
        writing.execute("PRAGMA cache_spill=1")
        writing.execute("BEGIN")
        writing.execute("DELETE FROM versions")
        writing.executemany(
            "INSERT INTO versions VALUES (?, 0, 'x', 'x', ?, 'x', 'x')", [(n, "x" * 999) for n in range(99)]
        )
        left = contents(shop)  # as a process that is killed leaves it
        writing.execute("ROLLBACK")
    for name, content in left.items():
        (shop / name).write_bytes(content)
    assert "workspace.db-journal" in left and b"x" * 999 in left["workspace.db"]
    assert without_rights(shop, lambda: read_only(shop, [0, 1, 2, 3, 4, 5])) == "fine"
    assert contents(shop) == left
    with Store.open(shop, write=True) as store:
        assert rows(store) == [0, 1, 2, 3, 4, 5] and store.problems == []


# -- damage ------------------------------------------------------------------------------------------------------------


def flip(content, rng):
    content[rng.integers(len(content))] ^= 1 << rng.integers(8)


def truncate(content, rng):
    del content[rng.integers(len(content)) :]


def zero(content, rng):
    begin = rng.integers(len(content))
    content[begin : begin + 256] = bytes(len(content[begin : begin + 256]))


def append(content, rng):
    content += rng.bytes(64)


def shift(content, rng):
    del content[rng.integers(len(content))]


MUTATIONS = (flip, truncate, zero, append, shift)


def mutated(shop, scratch, number, seed):
    """Damage one file after another, and count what came of it. Whatever is read is what was written."""
    rng, found = np.random.default_rng(seed), collections.Counter()
    files = sorted(path.relative_to(shop) for path in shop.rglob("*") if path.is_file() and path.name != "lock")
    for file in itertools.islice(itertools.cycle(files), number):
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(shop, scratch)
        content = bytearray((shop / file).read_bytes())
        MUTATIONS[rng.integers(len(MUTATIONS))](content, rng)
        (scratch / file).write_bytes(content)
        with Store.open(scratch) as store:
            problems, good = store.verify(), store.last_good("weights")
            assert all(str(scratch / file) in problem for problem in problems)
            assert store.head.number == 1 and (problems or good.number == 1)
            assert store.get(good.manifest["weights"]) == {"w": [good.number + 1.5]}
            with contextlib.nullcontext() if not problems else contextlib.suppress(GraspError):
                assert rows(store) == [0, 1, 2, 3, 4, 5]
        try:
            with Store.open(scratch, write=True) as store:
                store.commit("learn", {}, {**store.head.manifest, "weights": store.put({"w": [3.5]})})
                assert file.name != "workspace.db" or not problems
            found["written" if problems else "sound"] += 1
        except GraspError:
            assert file.name == "workspace.db" and problems
            found["refused"] += 1
    return found


def test_a_sample_of_mutations(shop, tmp_path):
    found = mutated(shop, tmp_path / "scratch", 40, seed=0)
    assert found["refused"] > 1 and found["written"] > 10


@pytest.mark.slow
def test_two_hundred_mutations(shop, tmp_path):
    assert sum(mutated(shop, tmp_path / "scratch", 200, seed=1).values()) == 200


# -- help --------------------------------------------------------------------------------------------------------------


def place(name):
    digits = name.removeprefix("object:")
    return digits[:2], f"{digits}.safetensors"


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def holding(folder, word):
    return [name for name, content in contents(folder).items() if word in content]


def read_only(shop, expected):
    with Store.open(shop) as store:
        assert rows(store) == expected and store.verify() == []
    with pytest.raises(GraspError, match=f"the workspace {shop} cannot be written"):
        Store.open(shop, write=True)
    return "fine"


def without_rights(folder, function):
    """What a function returns in a process that may read a folder and not write it."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    modes = {path: path.stat().st_mode for path in folder.parents if path.stat().st_mode & 0o055 != 0o055}
    here, there = os.pipe()
    try:
        for path, mode in modes.items():
            path.chmod(mode | 0o055)
        if not (pid := os.fork()):
            try:
                if os.getuid() == 0:
                    os.setuid(65534)
                os.write(there, function().encode())
            except BaseException as error:
                os.write(there, repr(error).encode())
            os._exit(0)
        os.close(there)
        os.waitpid(pid, 0)
        with open(here, "rb") as pipe:
            return pipe.read().decode()
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
