"""The calls of a tree, on a mount and on an image."""

from __future__ import annotations

import errno
import io
import os
import pickle
import random
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import espalier
import pytest
from espalier import Tree, Write


def raises(number: int, path: Any = ...) -> Any:
    """The error with this number, and of this path."""

    def check(error: OSError) -> bool:
        return error.errno == number and (path is ... or error.filename == path)

    return pytest.raises(OSError, check=check)


def test_many_files_come_back_in_the_order_in_which_they_were_asked_for(tree: Tree) -> None:
    files = {f"d{n % 7}/f{n}": os.urandom(n % 50 * 10) for n in range(500)}
    assert tree.write_many(files.items()) == [None] * 500
    names = list(files)
    random.Random(3).shuffle(names)
    assert tree.read_many(names) == [files[name] for name in names]
    assert [found.st_size for found in tree.stat_many(names)] == [len(files[name]) for name in names]
    parts = [(names[0], 3, 4), names[1], (names[2], 1000, 5), (names[0], 3, 4)]
    expected = [files[names[0]][3:7], files[names[1]], b"", files[names[0]][3:7]]
    assert tree.read_many(parts) == expected


def test_errors_have_number_and_path_and_harm_no_other_file(tree: Tree) -> None:
    tree.write("a", b"1")
    with raises(errno.ENOENT, "none") as caught:
        tree.read_many(["a", "none", "a/b"])
    assert isinstance(caught.value, FileNotFoundError)
    good, missing, below = tree.read_many(["a", "none", "a/b"], errors="return")
    assert good == b"1" and isinstance(missing, FileNotFoundError) and isinstance(below, NotADirectoryError)
    assert [type(found) for found in tree.stat_many(["none", "a"], errors="return")][0] is FileNotFoundError
    with raises(errno.EEXIST, "a"):
        tree.write_many([("a", b"2"), ("b", b"2")], replace=False)
    assert tree.read("a") == b"1" and tree.read("b") == b"2"
    with raises(errno.ENOENT, "no/where"):
        tree.write_many([("no/where", b"")], parents=False)
    with raises(errno.EINVAL):
        tree.stat("a\0b")
    with raises(errno.ENAMETOOLONG):
        tree.stat("n" * 256)
    with raises(errno.ENOENT):
        tree.stat("")
    for wrong in [7, None, ["a"]]:
        with pytest.raises(TypeError):
            tree.stat(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        tree.read_many([], errors="ignore")  # type: ignore[call-overload]


def test_names_of_any_bytes(tree: Tree) -> None:
    name = b"\xff \n'\xc3\xa4"
    tree.write(name, b"x")
    (entry,) = tree.scandir()
    assert os.fsencode(entry.path) == name
    assert tree.read(entry.path) == tree.read(Path(entry.path)) == b"x"
    with raises(errno.ENOENT, os.fsdecode(name) + "2"):
        tree.unlink(name + b"2")


def test_attributes(tree: Tree) -> None:
    tree.write_many([Write("a", b"12345", mode=0o640, mtime_ns=77), Write("l", b"a", symlink=True)])
    found = tree.stat("a")
    assert (found.st_size, found.st_mtime_ns, stat.filemode(found.st_mode)) == (5, 77, "-rw-r-----")
    assert (found.st_uid, found.st_gid, found.st_nlink) == (os.geteuid(), os.getegid(), 1)
    assert found.is_file() and not found.is_dir() and found.st_birthtime_ns > 10**18
    assert tree.stat("l").st_ino == found.st_ino and tree.stat("l", follow=False).is_symlink()
    assert tree.readlink("l") == "a"
    tree.chmod("a", 0o4711)
    tree.utime("a", (5, 1_500_000_000))
    tree.chown("a", gid=os.getegid())
    tree.truncate("a", 2)
    found = tree.stat("a")
    assert found.st_mode & 0o777 == 0o711 and found.st_size == 2
    before = found.st_mtime_ns
    tree.utime("a")
    assert tree.stat("a").st_mtime_ns >= before
    assert tree.stat("a") == tree.stat("a") != tree.stat(".")
    assert "st_size=2" in repr(tree.stat("a"))


def test_walks_and_listings(tree: Tree) -> None:
    tree.write_many([(f"d/e{n}/f{m}.{end}", b"") for n in range(3) for m in range(300) for end in "ab"])
    tree.symlink("e0", "d/link")
    assert [entry.path for entry in tree.scandir("d")] == ["e0", "e1", "e2", "link"]
    assert len(list(tree.walk())) == 1 + 4 + 1800
    assert {entry.path for entry in tree.walk("d", kinds=["directory"])} == {"e0", "e1", "e2"}
    assert len(list(tree.walk(pattern="*.a"))) == 900
    assert [entry.path for entry in tree.walk(pattern="d/*1/f7?.b")][:2] == ["d/e1/f70.b", "d/e1/f71.b"]
    assert [entry.path for entry in tree.walk("d", kinds=["link"])] == ["link"]
    walk = tree.walk()
    assert next(walk).path == "d"
    del walk
    with raises(errno.ENOTDIR, "d/e0/f1.a"):
        tree.walk("d/e0/f1.a")
    with raises(errno.ENOENT, "x"):
        tree.scandir("x")


def test_filters_by_size_and_time(tree: Tree) -> None:
    files = [Write("d/empty", b"", mtime_ns=-1), Write("d/e/ten", b"x" * 10, mtime_ns=0)]
    tree.write_many([*files, Write("d/e/more", b"x" * 5000, mtime_ns=1_000)])

    def found(**filter: Any) -> tuple[list[str], list[str]]:
        below = [entry.path for entry in tree.walk("d", kinds=["file"], **filter)]
        return below, [entry.path for entry in tree.scandir("d", kinds=["file"], **filter)]

    assert found() == (["empty", "e/more", "e/ten"], ["empty"])
    assert found(size=(10, None)) == (["e/more", "e/ten"], [])
    assert found(size=(1, 10)) == (["e/ten"], [])
    assert found(size=(0, 0)) == (["empty"], ["empty"])
    assert found(mtime_ns=(None, -1)) == (["empty"], ["empty"])
    assert found(mtime_ns=(0, None), size=(None, 10)) == (["e/ten"], [])
    assert found(mtime_ns=(1, 999)) == ([], [])
    assert found(pattern="e/*", size=(None, None)) == (["e/more", "e/ten"], [])
    assert [entry.path for entry in tree.scandir("d", pattern="e*")] == ["e", "empty"]
    with pytest.raises(OverflowError):
        tree.walk("d", size=(-1, None))
    with pytest.raises(KeyError):
        tree.scandir("d", kinds=["door"])


def test_whole_trees_and_names(tree: Tree) -> None:
    tree.write_many([("a/one", b"1"), ("a/b/two", b"2")])
    tree.clone("a", "c")
    tree.write("c/one", b"other")
    assert tree.read_many(["a/one", "c/one", "c/b/two"]) == [b"1", b"other", b"2"]
    with raises(errno.EEXIST):
        tree.clone("a", "c")
    tree.rename("a", "c", "exchange")
    assert tree.read("a/one") == b"other"
    with raises(errno.EEXIST, "a"):
        tree.rename("a", "c", "keep")
    with raises(errno.ENOTEMPTY):
        tree.rmdir("a")
    tree.remove_tree("a")
    assert not tree.exists("a") and tree.exists("c/b")
    tree.mkdir("x/y/z", parents=True)
    tree.mkdir("x/y/z", parents=True)
    with raises(errno.EEXIST, "x"):
        tree.mkdir("x")
    tree.rmdir("x/y/z")
    tree.link("c/one", "x/one")
    assert tree.stat("x/one").st_nlink == 2
    tree.unlink("c/one")
    assert tree.read("x/one") == b"1"
    # Nothing leads out.
    assert tree.stat("../../..").st_ino == tree.stat("/").st_ino


def test_changes_of_whole_trees_and_what_differs(tree: Tree) -> None:
    tree.write_many([("t/a", b"1"), ("t/d/b", b"2"), Write("t/d/run", b"", mode=0o744)])
    tree.clone("t", "u")
    assert list(tree.diff("t", "u")) == []
    tree.chmod_tree("u", clear=0o7777, add=0o640, execute=0o110)
    modes = [tree.stat(f"u/{name}").st_mode & 0o7777 for name in ("a", "d", "d/b", "d/run")]
    assert modes == [0o640, 0o750, 0o640, 0o750]
    tree.chown_tree("u") if os.geteuid() == 0 else None
    tree.unlink("u/a")
    tree.write("u/d/new", b"3")
    found = dict((path, change) for change, path in tree.diff("t", "u"))
    assert (found["a"], found["d/new"], found["d/b"]) == ("removed", "added", "changed")
    with raises(errno.ENOENT):
        tree.diff("t", "none")
    with raises(errno.ENOENT, "none"):
        tree.chmod_tree("none", add=1)
    with pytest.raises(TypeError):
        tree.chmod_tree("u", 1)  # type: ignore[misc]


def test_extended_attributes(tree: Tree) -> None:
    tree.write("a", b"")
    tree.symlink("a", "l")
    tree.setxattr("l", "user.one", b"1")
    tree.setxattr("a", "user.two", bytearray(b"22"), "create")
    assert tree.listxattr("a") == ["user.one", "user.two"] and tree.listxattr("l", follow=False) == []
    assert tree.getxattr("a", "user.two") == b"22"
    with raises(errno.EEXIST, "a"):
        tree.setxattr("a", "user.two", b"", "create")
    with raises(errno.ENODATA, "a"):
        tree.setxattr("a", "user.three", b"", "replace")
    with pytest.raises(ValueError):
        tree.setxattr("a", "user.three", b"", "other")  # type: ignore[arg-type]
    tree.removexattr("a", "user.one")
    with raises(errno.ENODATA, "a"):
        tree.getxattr("a", "user.one")
    with raises(errno.ENODATA, "a"):
        tree.removexattr("a", "user.one")


def test_new_files_have_extended_attributes(tree: Tree) -> None:
    xattrs = {"user.one": b"1", b"user.two": bytearray(b"2\0")}
    large = random.Random(7).randbytes(5 << 20)
    tree.write_many([Write("d/a", b"x", xattrs=xattrs), Write("d/large", large, xattrs=xattrs), ("d/plain", b"")])
    for name in ["d/a", "d/large"]:
        assert tree.listxattr(name) == ["user.one", "user.two"]
        assert (tree.getxattr(name, "user.one"), tree.getxattr(name, "user.two")) == (b"1", b"2\0")
    assert tree.read("d/large") == large and tree.listxattr("d/plain") == []
    wrong = [Write("d/a", b"new", xattrs={"wrong": b""}), Write("d/b", b"new", xattrs={"user.b": b""})]
    first, second = tree.write_many(wrong, errors="return")
    assert isinstance(first, OSError) and first.errno == errno.EOPNOTSUPP and second is None
    assert tree.read_many(["d/a", "d/b"]) == [b"x", b"new"]
    if os.geteuid() != 0:
        with raises(errno.EPERM, "d/c"):
            tree.write_many([Write("d/c", b"", xattrs={"trusted.c": b""})])
        assert not tree.exists("d/c")


def test_large_files(tree: Tree) -> None:
    content = random.Random(5).randbytes(9 << 20)
    tree.write_many([("d/small", b"s"), ("d/large", content)])
    assert [entry.path for entry in tree.scandir("d")] == ["large", "small"]
    assert tree.read("d/large") == content
    assert tree.read_many([("d/large", 8 << 20, 10), ("d/large", (9 << 20) - 1, 10)]) == [
        content[8 << 20 : (8 << 20) + 10],
        content[-1:],
    ]
    with raises(errno.EEXIST, "d/large"):
        tree.write_many([("d/large", content)], replace=False)
    assert len(tree.scandir("d")) == 2


def use_file(open_file: Any) -> list[Any]:
    """Works with files; what came out must not depend on the kind of file."""
    found: list[Any] = []
    for mode in ["x", "xb", "r+", "w+b", "a", "ab+", "rb", "r", "r+b", "wb"]:
        try:
            with open_file(mode) as file:
                data: Any = "zeile äöü\nmore\n" if "b" not in mode else b"bytes\r\nmore" * 1000
                found.append((mode, file.readable(), file.writable(), file.tell()))
                if file.writable():
                    found.append(file.write(data))
                    found.append(file.tell())
                    if "a" not in mode:
                        file.seek(3)
                        found.append(file.truncate())
                if file.readable():
                    file.seek(0)
                    found.append(file.read(4))
                    found.append(file.readline())
                    found.append(file.read())
                    found.append(file.seek(0, io.SEEK_END))
        except (OSError, ValueError) as error:
            found.append((mode, type(error).__name__))
    return found


def test_open_files_behave_as_those_of_python(tree: Tree, tmp_path: Path) -> None:
    here = use_file(lambda mode: tree.open("file", mode, encoding=None if "b" in mode else "utf-8"))
    there = use_file(lambda mode: open(tmp_path / "file", mode, encoding=None if "b" in mode else "utf-8"))
    assert here == there
    for mode in ["", "rw", "q", "rbt", "rr"]:
        with pytest.raises(ValueError):
            tree.open("file", mode)
    with raises(errno.ENOENT, "none"):
        tree.open("none")
    with raises(errno.EISDIR):
        tree.open(".", "wb")
    file = tree.open("file", "rb", 0)
    file.close()
    with pytest.raises(ValueError):
        file.read()


def test_an_open_file_stays_the_same_when_its_name_goes(tree: Tree) -> None:
    tree.write("a", b"old")
    with tree.open("a", "rb") as file:
        tree.write("a", b"new")
        assert file.read() == b"old"
    with tree.open("a", "r+b") as file:
        tree.rename("a", "b")
        file.write(b"more")
    assert tree.read("b") == b"more" and not tree.exists("a")


def test_changes_since_a_position(tree: Tree) -> None:
    tree.write("d/a", b"", parents=True)
    first = tree.changes("d")
    assert first.everything and first.paths == []
    second = tree.changes("d", first.position)
    tree.write("d/b", b"")
    found = tree.changes("d", second.position)
    assert found.everything or "b" in found.paths
    with raises(errno.ENOTDIR, "d/a"):
        tree.changes("d/a")


def test_each_change_is_told_once_to_a_waiting_thread(tree: Tree) -> None:
    tree.mkdir("d")
    ready = threading.Semaphore(0)
    found: list[espalier.Changes] = []
    with tree.watch("d") as watch:

        def wait() -> None:
            for _, changes in zip(range(21), watch):
                found.append(changes)
                ready.release()

        thread = threading.Thread(target=wait)
        thread.start()
        for n in range(20):
            ready.acquire()
            tree.write("outside", b"")
            # If the waiting thread kept others from running, this would come too late.
            tree.mkdir(f"d/{n}")
        thread.join()
        assert found[0].everything
        assert [changes.paths for changes in found[1:]] == [[str(n)] for n in range(20)]
        assert watch.wait(0).paths == []
        tree.rmdir("d/3")
        tree.rmdir("d/4")
        assert {path.rstrip("/") for path in watch.wait().paths} == {"3", "4"}
        assert watch.wait(0.001).paths == []
    with pytest.raises(ValueError):
        watch.wait()
    with raises(errno.ENOENT, "none"):
        tree.watch("none")
    with raises(errno.ENOTDIR, "outside"):
        tree.watch("outside").wait()
    with pytest.raises(ValueError):
        tree.watch("d", b"position", since="d")


def test_a_watch_goes_on_from_where_another_one_was(tree: Tree) -> None:
    tree.mkdir("d")
    with tree.watch("d") as watch:
        # A position is good from the first second of a watch on.
        while tree.changes("d", watch.position).everything:
            watch.wait(0.02)
        position = watch.position
    tree.mkdir("d/one")
    tree.mkdir("d/two")
    with tree.watch("d", position) as watch:
        assert watch.position == position
        assert set(watch.wait().paths) == {"one", "two"}
        assert watch.wait(0).paths == []
        assert watch.position != position
    tree.clone("d", "before")
    tree.mkdir("d/three")
    with tree.watch("d", since="before") as watch:
        assert watch.wait().paths == ["three"]
        tree.mkdir("d/four")
        assert watch.wait().paths == ["four"]


def test_a_wait_ends_when_another_thread_closes_the_watch(tree: Tree) -> None:
    tree.mkdir("d")
    watch = tree.watch("d")
    assert watch.wait().everything
    found: list[Any] = []

    def wait() -> None:
        try:
            found.append(watch.wait())
        except ValueError as error:
            found.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    watch.close()
    thread.join()
    assert isinstance(found[0], ValueError)


def test_a_signal_ends_a_wait_and_loses_no_change(tree: Tree) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        tree.mkdir("d/told-later")
        raise Interrupted

    tree.mkdir("d")
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with tree.watch("d") as watch:
            assert watch.wait().everything
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            with pytest.raises(Interrupted):
                watch.wait()
            assert watch.wait().paths == ["told-later"]
            assert watch.wait(0).paths == []

            def wait_again(*_: object) -> None:
                with pytest.raises(RuntimeError):
                    watch.wait(0)
                raise Interrupted

            signal.signal(signal.SIGALRM, wait_again)
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            with pytest.raises(Interrupted):
                watch.wait()
            signal.signal(signal.SIGALRM, lambda *_: watch.close())
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            with pytest.raises(ValueError):
                watch.wait()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_threads_share_a_tree(tree: Tree) -> None:
    names = [f"f{n}" for n in range(64)]
    tree.write_many([(name, name.encode()) for name in names])
    failures: list[Any] = []

    def work(seed: int) -> None:
        chooser = random.Random(seed)
        for _ in range(30):
            some = chooser.sample(names, 20)
            if tree.read_many(some) != [name.encode() for name in some] or len(tree.scandir()) != 64:
                failures.append(some)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def in_child(work: Any) -> Any:
    """What `work` returns, or its error, in a child of fork."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            result = work()
        except BaseException as error:
            result = error
        os.write(into, pickle.dumps(result))
        os._exit(0)
    os.close(into)
    with open(out, "rb") as pipe:
        result = pickle.load(pipe)
    os.waitpid(child, 0)
    return result


def test_a_child_of_fork_has_a_connection_of_its_own(mounted: str) -> None:
    with Tree(mounted) as tree:
        tree.write("a", b"1")
        assert in_child(lambda: (tree.read("a"), tree.write("b", b"2"))) == (b"1", None)
        assert tree.read("b") == b"2"
        assert in_child(lambda: in_child(lambda: tree.read("b"))) == b"2"


def test_a_child_of_fork_reads_an_image_that_is_not_written(image: str) -> None:
    with Tree(image) as tree:
        tree.write("a", b"1")
        error = in_child(lambda: tree.read("a"))
        assert isinstance(error, OSError) and error.errno == errno.EBUSY
        assert tree.read("a") == b"1"
    with Tree(image, read_only=True) as tree:
        assert in_child(lambda: tree.read("a")) == b"1"
        assert pickle.loads(pickle.dumps(tree)).read("a") == b"1"
        with raises(errno.EROFS, "b"):
            tree.write("b", b"")


def test_a_tree_is_opened_anew_from_a_pickle(mounted: str) -> None:
    with Tree(mounted) as tree:
        tree.write("a", b"1")
        with pickle.loads(pickle.dumps(tree)) as other:
            assert other.read("a") == b"1" and other.place == tree.place


def test_a_directory_is_a_tree_of_its_own(tree: Tree) -> None:
    tree.write_many([("d/e/one", b"1"), ("two", b"2")])
    with tree.subtree("d/e") as below:
        assert below.place.endswith("/d/e")
        tree.rename("d/e", "moved")
        tree.write("d/e/one", b"another", parents=True)
        assert below.read("one") == below.read("../../one") == b"1"
        below.write("new", b"")
        assert [entry.path for entry in tree.scandir("moved")] == ["new", "one"]
        with raises(errno.ENOENT, "../two"):
            below.read("../two")
    with raises(errno.EBADF):
        below.stat(".")
    assert tree.read("two") == b"2"
    with raises(errno.ENOTDIR, "two"):
        tree.subtree("two")


def test_a_subtree_is_opened_anew_from_a_pickle(image: str, mounted: str) -> None:
    with Tree(mounted) as tree:
        tree.write_many([("d/e/one", b"1")])
        assert pickle.loads(pickle.dumps(tree.subtree("/d").subtree("e"))).read("one") == b"1"
    with Tree(image) as tree:
        tree.write_many([("d/e/one", b"1")])
    with Tree(image, read_only=True) as tree:
        below = tree.subtree("/d").subtree("e")
        assert pickle.loads(pickle.dumps(below)).read("one") == b"1"
        assert in_child(lambda: below.read("one")) == b"1"


def test_places(image: str, mounted: str, tmp_path: Path) -> None:
    with raises(errno.ENOENT):
        Tree("/nowhere at all")
    with raises(errno.ENOTDIR):
        Tree("/dev/null")
    with raises(errno.ENOTTY, str(tmp_path)):
        Tree(tmp_path)
    (tmp_path / "text").write_text("no image")
    with pytest.raises(OSError):
        Tree(tmp_path / "text")
    with raises(errno.EEXIST):
        espalier.format_image(tmp_path / "text", 1 << 20)
    with Tree(image) as tree:
        tree.write_many([("d/e/f", b"deep")])
        with raises(errno.EBUSY):
            Tree(image, wait=0)
    with raises(errno.EBADF):
        tree.stat(".")
    with Tree(f"{image}:/d/e") as tree:
        assert tree.read("f") == tree.read("/../f") == b"deep"
    with raises(errno.ENOENT):
        Tree(f"{image}:/none")
    tree = Tree(mounted)
    tree.close()
    with raises(errno.EBADF):
        tree.stat(".")


def test_rights_in_an_image_are_those_of_the_process(image: str) -> None:
    with Tree(image, as_root=True) as tree:
        tree.write_many([Write("secret", b"", uid=12345, gid=12345, mode=0o600)])
        assert tree.read("secret") == b""
    if os.geteuid() != 0:
        with Tree(image) as tree, raises(errno.EACCES, "secret"):
            tree.read("secret")


def test_an_image_is_made_durable_when_the_program_ends(image: str) -> None:
    program = "import espalier, sys; tree = espalier.Tree(sys.argv[1]); tree.write('a', b'1')"
    subprocess.run([sys.executable, "-c", program, image], check=True)
    with Tree(image, read_only=True) as tree:
        assert tree.read("a") == b"1"


def test_the_kernel_sees_what_was_written_and_the_other_way_round(mounted: str) -> None:
    with Tree(mounted) as tree:
        assert not os.path.exists(f"{mounted}/a")
        tree.write("a", b"tree")
        assert Path(mounted, "a").read_bytes() == b"tree"
        Path(mounted, "b").write_bytes(b"kernel")
        assert tree.read("b") == b"kernel"
        found, expected = tree.stat("b"), os.stat(f"{mounted}/b")
        for name in ["ino", "mode", "nlink", "uid", "gid", "size", "mtime_ns", "ctime_ns"]:
            assert getattr(found, f"st_{name}") == getattr(expected, f"st_{name}")
