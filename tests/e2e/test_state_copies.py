"""State directories that were copied, moved or made by 0.4.0: each keeps to its own data, and these to one server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chatsite import bundled_server, state_identity
from chatsite.embedded import BundledServer, BundledValkey, EmbeddedError, discover
from chatsite.process_id import ProcessId
from chatsite.state_identity import IDENTITY, Identity, settle
from chatsite.supervisor import Supervisor
from inference.errors import ConfigError
from tests.e2e.test_embedded import ROOT, both, orphan, reads_back, write

IS_ROOT = os.geteuid() == 0

pytestmark = pytest.mark.e2e

MakeKind = Callable[[type[BundledServer], Path], BundledServer]


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="smolfleet-copies-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture
def make(folder: Path) -> Iterator[MakeKind]:
    made: list[BundledServer] = []

    def one(kind: type[BundledServer], state_dir: Path) -> BundledServer:
        made.append(kind(state_dir, durable=False))
        return made[-1]

    yield one
    for server in made:
        server.stop()


def filled(make: MakeKind, kind: type[BundledServer], state_dir: Path) -> BundledServer:
    """A server of `state_dir` that was written to and stopped."""
    server = make(kind, state_dir)
    server.start()
    write(server)
    server.stop()
    return server


def memory(state_dir: Path, name: str = "valkey") -> dict[str, object]:
    return dict(json.loads((state_dir / f"{name}.json").read_text()))


def make_old(state_dir: Path, name: str) -> None:
    """Back to what 0.4.0 wrote: the whole path of the place, and no identity."""
    place = state_dir / str(memory(state_dir, name)["place"])
    (state_dir / f"{name}.json").write_text(json.dumps({**memory(state_dir, name), "place": str(place)}))
    (state_dir / IDENTITY).unlink()
    place.with_name(f"{name}.lock").unlink()


def is_empty(server: BundledServer) -> bool:
    """Whether what `write` wrote is gone, or never was."""
    try:
        return not reads_back(server)
    except Exception as error:  # noqa: BLE001  a table that is not there
        return "does not exist" in str(error)


@both
def test_a_copy_has_its_own_data_while_the_original_runs(
    kind: type[BundledServer], make: MakeKind, folder: Path
) -> None:
    original = filled(make, kind, folder / "var")
    shutil.copytree(folder / "var", folder / "copy")
    original.start()
    copy = make(kind, folder / "copy")
    copy.start()
    assert original.is_running
    assert reads_back(copy)
    assert copy.place == folder / "copy" / "servers" / copy.name
    assert (copy.port, copy.pid) != (original.port, original.pid)
    copy.remove()
    assert reads_back(original)
    assert Identity.read(folder / "var") != Identity.read(folder / "copy")


@both
def test_a_state_directory_of_the_version_before_goes_on_with_its_data(
    kind: type[BundledServer], make: MakeKind, folder: Path
) -> None:
    server = filled(make, kind, folder / "var")
    make_old(folder / "var", server.name)
    again = make(kind, folder / "var")
    again.start()
    assert reads_back(again)
    assert memory(folder / "var", server.name)["place"] == f"servers/{server.name}"


def test_a_moved_state_directory_goes_on_with_its_data(make: MakeKind, folder: Path) -> None:
    filled(make, BundledValkey, folder / "var")
    before = Identity.read(folder / "var")
    (folder / "var").rename(folder / "elsewhere")
    (folder / "var").symlink_to(folder / "elsewhere")  # the old path still leads there: it is a move all the same
    moved = make(BundledValkey, folder / "var")
    moved.start()
    assert reads_back(moved)
    after = Identity.read(folder / "elsewhere")
    assert before is not None and after is not None
    assert (after.id, after.path) == (before.id, folder / "elsewhere")


@pytest.mark.parametrize("is_moved", [False, True], ids=["copied", "moved"])
def test_a_directory_of_the_version_before_that_is_elsewhere_now_uses_its_own_data(
    is_moved: bool, make: MakeKind, folder: Path
) -> None:
    original = filled(make, BundledValkey, folder / "var")
    make_old(folder / "var", "valkey")
    shutil.copytree(folder / "var", folder / "other")
    if is_moved:
        shutil.rmtree(folder / "var")
    else:
        original.start()
    other = make(BundledValkey, folder / "other")
    other.start()
    assert other.place == folder / "other" / "servers" / "valkey"
    assert reads_back(other)
    assert is_moved or reads_back(original)


def test_a_copy_made_while_the_original_ran_is_refused_and_leaves_it_alone(make: MakeKind, folder: Path) -> None:
    original = make(BundledValkey, folder / "var")
    original.start()
    write(original)
    shutil.copytree(folder / "var", folder / "copy")
    assert discover(folder / "copy") == {}, "the original's addresses are not the copy's"
    for _ in range(2):
        with pytest.raises(ConfigError, match=f"{folder}/copy was copied from {folder}/var while that ran"):
            make(BundledValkey, folder / "copy").start()
        assert reads_back(original)
        original.stop()  # refused for ever: nobody can tell what was torn
        original.start()


def test_a_copy_ends_nothing_that_the_original_runs(folder: Path) -> None:
    (folder / "var").mkdir()
    settle(folder / "var")
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True) as worker:
        (folder / "var" / "children.json").write_text(json.dumps([ProcessId.of(worker.pid).as_json()]))
        shutil.copytree(folder / "var", folder / "copy")
        settle(folder / "copy")
        Supervisor(folder / "copy", cwd=ROOT, say=print).end_leftovers()
        assert worker.poll() is None
        worker.kill()


def test_one_place_has_one_server_even_when_nobody_remembers_the_first(
    make: MakeKind, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundled_server, "LOCK_SECONDS", 0.1)
    first = make(BundledValkey, folder / "var")
    first.start()
    lost = {name: value for name, value in memory(folder / "var").items() if name not in ("process", "owner", "port")}
    (folder / "var" / "valkey.json").write_text(json.dumps(lost))
    with pytest.raises(EmbeddedError, match=r"Another server uses the valkey data in .*/var/servers/valkey"):
        make(BundledValkey, folder / "var").start()
    assert first.is_running


def test_the_leftover_of_a_directory_that_was_moved_is_ended(make: MakeKind, folder: Path) -> None:
    with orphan(BundledValkey, folder / "var") as starter:
        assert starter.stdout is not None
        leftover = ProcessId.of(int(starter.stdout.readline()))
        starter.kill()
        starter.wait()
    (folder / "var").rename(folder / "elsewhere")
    server = make(BundledValkey, folder / "elsewhere")
    server.start()
    assert not leftover.is_alive
    assert server.is_running


def test_the_server_of_another_directory_whose_path_ends_alike_is_no_leftover(make: MakeKind, folder: Path) -> None:
    """`/backup/srv/var` holds `/srv/var`: a record that came with a copy must not end the other's server."""
    other = make(BundledValkey, folder / "backup" / "var")
    other.start()
    filled(make, BundledValkey, folder / "var")
    record = {**memory(folder / "var"), "process": memory(folder / "backup" / "var")["process"]}
    (folder / "var" / "valkey.json").write_text(json.dumps(record))
    make(BundledValkey, folder / "var").start()
    assert other.is_running


@pytest.mark.skipif(not IS_ROOT, reason="only root drops to nobody")
def test_data_outside_belong_to_the_directory_they_were_made_for(make: MakeKind) -> None:
    with tempfile.TemporaryDirectory(prefix="smolfleet-closed-") as name:  # mode 700: the data lie elsewhere
        var, copy, moved = (Path(name) / part for part in ("var", "copy", "moved"))
        original = filled(make, BundledValkey, var)
        assert not original.place.is_relative_to(name)
        shutil.copytree(var, copy)
        with pytest.raises(EmbeddedError, match=f"lie in {original.place} and belong to another state directory"):
            make(BundledValkey, copy).start()
        var.rename(moved)
        server = make(BundledValkey, moved)
        try:
            server.start()
            assert server.place == original.place
            assert reads_back(server)
        finally:
            server.remove()


@pytest.mark.skipif(not IS_ROOT, reason="only root drops to nobody")
def test_data_outside_of_the_version_before_are_known_by_the_name_of_their_folder(make: MakeKind) -> None:
    with tempfile.TemporaryDirectory(prefix="smolfleet-closed-") as name:
        var, copy = Path(name) / "var", Path(name) / "copy"
        original = filled(make, BundledValkey, var)
        original.place.with_name(original.place.name + ".lock").unlink()
        (var / IDENTITY).unlink()
        shutil.copytree(var, copy)
        with pytest.raises(EmbeddedError, match="belong to another state directory"):
            make(BundledValkey, copy).start()
        server = make(BundledValkey, var)
        try:
            server.start()
            assert reads_back(server)
        finally:
            server.remove()


@pytest.mark.skipif(not IS_ROOT, reason="only root gives files away")
def test_data_of_another_user_are_refused(make: MakeKind, folder: Path) -> None:
    server = filled(make, BundledValkey, folder / "var")
    os.chown(server.place, 54_321, 54_321)
    with pytest.raises(EmbeddedError, match=r"belongs to user 54321, not to nobody; start it as their owner\."):
        make(BundledValkey, folder / "var").start()


def test_a_directory_settles_once(folder: Path) -> None:
    (folder / "var").mkdir()
    first = settle(folder / "var")
    assert settle(folder / "var") == first
    assert (folder / "var" / IDENTITY).stat().st_mode & 0o777 == 0o600
    (folder / "var" / IDENTITY).write_text("{")
    assert settle(folder / "var").id != first.id, "what cannot be read is made anew"
    assert state_identity.read_json(folder / "nothing") is None
