"""`espalier://`, with fsspec's own suites, on a mount and on an image."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import espalier
import fsspec
import pytest
from conftest import IMAGE_BYTES, new_directory
from espalier.fsspec import EspalierFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractFileSystem
from fsspec.tests import abstract


@pytest.fixture(scope="module", params=["mounted", "image"])
def fs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A file system at a place of each kind."""
    if request.param == "mounted":
        place = new_directory()
    else:
        place = str(tmp_path_factory.mktemp("fsspec") / "image")
        espalier.format_image(place, IMAGE_BYTES)
    fs = fsspec.filesystem("espalier", place=place)
    yield fs
    fs.close()


class Fixtures(abstract.AbstractFixtures):
    """Where fsspec's suites work."""

    @pytest.fixture
    def fs_path(self, fs: EspalierFileSystem) -> str:
        return "/suite"

    @pytest.fixture
    def local_fs(self) -> LocalFileSystem:
        return LocalFileSystem(auto_mkdir=True)

    @pytest.fixture(autouse=True)
    def clean(self, fs: EspalierFileSystem) -> Iterator[None]:
        fs.mkdir("/suite")
        yield
        fs.rm("/suite", recursive=True)

    @pytest.fixture
    def fs(self, fs: EspalierFileSystem) -> EspalierFileSystem:
        return fs


class TestCopy(Fixtures, abstract.AbstractCopyTests):
    pass


class TestGet(Fixtures, abstract.AbstractGetTests):
    pass


class TestPut(Fixtures, abstract.AbstractPutTests):
    pass


class TestOpen(Fixtures, abstract.AbstractOpenTests):
    pass


class TestPipe(Fixtures, abstract.AbstractPipeTests):
    pass


@pytest.fixture
def top(fs: EspalierFileSystem) -> Iterator[str]:
    """A directory with files."""
    fs.pipe({"/top/one": b"1", "/top/d/two": b"22", "/top/d/e/three": b"333"})
    fs.symlink("/top/d/two", "/top/link")
    yield "/top"
    fs.rm("/top", recursive=True)


def test_what_is_found_is_what_the_generic_calls_find(fs: EspalierFileSystem, top: str) -> None:
    for options in [{}, {"withdirs": True}, {"detail": True}, {"maxdepth": 1}]:
        assert fs.find(top, **options) == AbstractFileSystem.find(fs, top, **options)
    assert fs.find(top + "/one") == [top + "/one"] and fs.find(top + "/none") == []
    assert fs.glob(top + "/**/t*") == [top + "/d/e/three", top + "/d/two"]
    assert fs.du(top) == 8
    assert fs.ls(top, detail=False) == [top + "/d", top + "/link", top + "/one"]
    assert [info["type"] for info in fs.ls(top)] == ["directory", "file", "file"]
    assert fs.info(top + "/link")["size"] == 2 and fs.islink(top + "/link")
    assert not fs.exists(top + "/none") and not fs.lexists(top + "/none")
    assert fs.ls(top + "/one", detail=False) == [top + "/one"]
    with pytest.raises(FileNotFoundError):
        fs.ls(top + "/none")
    assert fs.modified(top + "/one") >= fs.created(top + "/one")
    before = fs.ukey(top + "/one")
    fs.pipe(top + "/one", b"11")
    assert fs.ukey(top + "/one") != before
    fs.pipe(top + "/one", b"1")


def test_contents_of_many_files(fs: EspalierFileSystem, top: str) -> None:
    assert fs.cat(top, recursive=True) == {
        **{top + "/" + name: data for name, data in [("one", b"1"), ("d/two", b"22"), ("d/e/three", b"333")]},
        top + "/link": b"22",
    }
    assert fs.cat(top + "/one") == b"1"
    assert fs.cat([top + "/one"]) == {top + "/one": b"1"}
    assert fs.cat_file(top + "/d/e/three", start=-2) == b"33" and fs.cat_file(top + "/d/two", 0, -1) == b"2"
    two = [top + "/one", top + "/d/none"]
    with pytest.raises(FileNotFoundError):
        fs.cat(two)
    assert fs.cat(two, on_error="omit") == {top + "/one": b"1"}
    assert isinstance(fs.cat(two, on_error="return")[two[1]], FileNotFoundError)
    paths = [top + "/d/two", top + "/one", top + "/d/e/three"]
    assert fs.cat_ranges(paths, [1, 0, -2], [2, None, None]) == [b"2", b"1", b"33"]
    assert fs.cat_ranges(paths, 0, 1) == [b"2", b"1", b"3"]
    assert fs.cat_ranges(paths, [0, -9, -3], [-1, None, -1]) == [b"2", b"1", b"33"]
    two.append(top + "/one/below")
    for start, end in [(-1, None), (0, -1), (None, None)]:
        read = fs.cat_ranges(two, [start] * 3, [end] * 3, on_error="return")
        assert read[0] == (b"" if end else b"1")
        assert isinstance(read[1], FileNotFoundError) and isinstance(read[2], NotADirectoryError)
        assert fs.cat(two, on_error="omit", start=start, end=end) == {two[0]: read[0]}
        with pytest.raises(FileNotFoundError):
            fs.cat(two, start=start, end=end)


def test_many_files_are_few_calls(fs: EspalierFileSystem, top: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Counted:
        """A tree that notes the calls on it."""

        def __init__(self, tree: espalier.Tree) -> None:
            self._tree = tree

        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            return getattr(self._tree, name)

    monkeypatch.setattr(fs, "_trees", {at: Counted(tree) for at, tree in fs._trees.items()})
    paths = [top + "/one", top + "/d/two", top + "/d/e/three"]
    assert fs.cat_ranges(paths, -1, None) == [b"1", b"2", b"3"]
    assert calls == ["stat_many", "read_many"]
    calls.clear()
    few = len(fs.cat(top + "/d", recursive=True)), len(calls)
    calls.clear()
    fs.pipe({f"{top}/d/e/{number}": b"" for number in range(20)})
    calls.clear()
    assert (len(fs.cat(top + "/d", recursive=True)), len(calls)) == (few[0] + 20, few[1])


def test_whole_directories_are_copied_and_moved(fs: EspalierFileSystem, top: str) -> None:
    fs.cp(top, "/copy", recursive=True)
    assert fs.cat("/copy/d/e/three") == b"333"
    fs.pipe("/copy/d/two", b"other")
    assert fs.cat(top + "/d/two") == b"22"
    fs.cp(top, "/copy/", recursive=True)
    assert fs.cat("/copy/top/one") == b"1"
    fs.mv("/copy/d", "/copy/moved")
    fs.mv("/copy/moved", "/copy/top")
    assert fs.cat("/copy/top/moved/two") == b"other" and not fs.exists("/copy/moved")
    with pytest.raises(OSError):
        fs.mv("/copy/top/moved", "/copy/top/d/two/below")
    with pytest.raises(IsADirectoryError):
        fs.rm("/copy")
    fs.rm("/copy", recursive=True)
    large = os.urandom(3 << 20)
    fs.pipe("/large", large)
    fs.cp_file("/large", "/large2")
    fs.pipe("/large2", b"small")
    fs.cp_file("/large", "/large2")
    assert fs.cat("/large2") == large
    fs.rm(["/large", "/large2"])
    assert fs.glob("/large*") == []


def test_open_files_and_transactions(fs: EspalierFileSystem, top: str) -> None:
    with fs.open("/file", "w") as file:
        file.write("first\nsecond\n")
    with fs.open("/file", "r") as file:
        assert list(file) == ["first\n", "second\n"]
    with fs.open("/file", "rb") as file:
        assert file.size == 13 and file.read(5) == b"first" and file.readline() == b"\n"
    with fs.open("/file", "ab") as file:
        file.write(b"third")
    assert fs.tail("/file", 5) == b"third" and fs.head("/file", 5) == b"first"
    with fs.transaction:
        with fs.open("/file", "wb") as file:
            file.write(b"later")
        assert fs.cat("/file").startswith(b"first")
    assert fs.cat("/file") == b"later"
    with pytest.raises(ZeroDivisionError):
        with fs.transaction:
            with fs.open("/file", "wb") as file:
                file.write(b"never")
            1 / 0  # noqa: B018
    assert fs.cat("/file") == b"later"
    fs.touch("/file")
    assert fs.size("/file") == 0
    with fs.open("/file.gz", "wb", compression="gzip") as file:
        file.write(b"x" * 1000)
    with fs.open("/file.gz", "rb", compression="infer") as file:
        assert file.read() == b"x" * 1000
    fs.rm(["/file", "/file.gz"])
    assert [name for name in fs.ls("/", detail=False) if "file" in name or ".espalier" in name] == []


def test_paths_of_the_system_find_their_mount_and_image(mounted: str, image: str, tmp_path: Path) -> None:
    url = f"espalier://{mounted}/d/file"
    fs, path = fsspec.url_to_fs(url)
    fs.makedirs(f"{mounted}/d")
    with fsspec.open(url, "wb") as file:
        file.write(b"by the client")
    assert Path(mounted, "d", "file").read_bytes() == b"by the client"
    assert fs.unstrip_protocol(path) == url
    inside = f"{image}:/e"
    fs.cp(f"{mounted}/d", inside, recursive=True)
    assert fs.cat(f"{inside}/file") == b"by the client"
    assert fs.cat([f"{mounted}/d/file", f"{inside}/file"]) == dict.fromkeys(
        [f"{mounted}/d/file", f"{inside}/file"], b"by the client"
    )
    fs.mv(f"{inside}/file", f"{mounted}/d/moved")
    assert os.listdir(f"{mounted}/d") in (["file", "moved"], ["moved", "file"])
    assert pickle.loads(pickle.dumps(fs)).cat(f"{mounted}/d/moved") == b"by the client"
    with pytest.raises(OSError):
        fs.info(str(tmp_path))
    fs.close()


def test_no_other_file_system_is_needed() -> None:
    """What is not of fsspec has no dependency."""
    import subprocess
    import sys

    program = "import sys, espalier; sys.exit('fsspec' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
