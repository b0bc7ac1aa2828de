"""Places: a directory on a freshly made file system, for one suite, and room beside it.

A place is named by its mount and by the user that works in it. Mounts are `ext4`, to compare with,
and those of Espalier: `image` (an image, over io_uring where the kernel has it), `classic` (over
/dev/fuse), `writeback`, `device` (a block device, which is a loop device here), `object` (a store in
an object store, which is a directory here) and `rootless` (an image that the ordinary user mounts).
When a place is left it is unmounted and checked.
"""

import os
import pathlib
import shutil
import tempfile
import time

from process import OUT_OF_TIME, USER, Failure, check, run

MOUNTS = {
    "ext4": "ext4 on a loop device",
    "image": "an image, mounted by root",
    "classic": "the same with `-o transport=classic`",
    "writeback": "the same with `-o writeback`",
    "device": "a block device (a loop device), mounted by root",
    "object": "an object store (a directory), with a disk cache and a journal, mounted by root",
    "rootless": "an image, mounted by an ordinary user",
}
OPTIONS = {"classic": "transport=classic", "writeback": "writeback"}
SIZE = 8 << 30
# What the server may hold; small, so that it has to forget things.
CACHE = "256M"
# Of an object store: both small, so that slots are used again and records go round.
DISK_CACHE, JOURNAL = "64M", "64M"


class Place:
    """A mount, a directory `dir` on it, and a directory `work` outside of it, both of `user`."""

    def __init__(self, program, mount, user, log):
        self.program, self.mount, self.user, self.log = program, mount, user, log
        # Short: the path of a socket has 107 bytes at most.
        self.base = pathlib.Path(tempfile.mkdtemp(prefix="c-"))
        self.base.chmod(0o755)
        self.root, self.image, self.work = self.base / "mnt", self.base / "fs.img", self.base / "work"
        self.dir = self.root / "t"
        self.device = None
        # What Espalier is told to mount and to check.
        self.store = f"file://{self.base}/objects" if mount == "object" else self.image
        # Suites that do their own mounts below the directory name them here, the last one first.
        self.inner = []

    def owner(self):
        """The user that mounts."""
        return USER if self.mount == "rootless" else "root"

    def __enter__(self):
        try:
            shutil.chown(self.base, self.owner(), self.owner())
            for directory in (self.root, self.work):
                directory.mkdir()
                shutil.chown(directory, self.user, self.user)
            self.make()
            self.up()
            self.check(["mkdir", self.dir], user=self.owner())
            if self.user != self.owner():
                shutil.chown(self.dir, self.user, self.user)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        """Takes everything down, in whatever state it is."""
        for path in (*self.inner, self.root):
            while os.path.ismount(path) or self.is_dead(path):
                if run(["umount", path], limit=60)[0] != 0:
                    run(["umount", "-l", path], limit=60)
        self.detach()
        shutil.rmtree(self.base, ignore_errors=True)

    @staticmethod
    def is_dead(path):
        try:
            os.stat(path)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    def make(self):
        if self.mount in ("ext4", "device"):
            with open(self.image, "wb") as file:
                file.truncate(SIZE)
        if self.mount == "ext4":
            self.check(["mkfs.ext4", "-q", "-m", "0", self.image])
        elif self.mount == "device":
            self.attach()
            self.check([self.program, "mkfs", self.device])
        else:
            argv = [self.program, "mkfs", "--size", str(SIZE), self.store]
            self.check(argv, user=self.owner(), env={"HOME": self.work})

    def attach(self):
        self.device = check(["losetup", "--find", "--show", self.image]).strip()

    def detach(self):
        if self.device is not None:
            run(["losetup", "--detach", self.device])
            self.device = None

    def up(self):
        if self.mount == "ext4":
            self.check(["mount", "-o", "loop", self.image, self.root])
            return
        options = [OPTIONS[self.mount]] if self.mount in OPTIONS else []
        logfile = self.work / "server.log"
        options.append(f"logfile={logfile}")
        if self.mount == "object":
            options.append(f"disk_cache={self.base}/cache,disk_cache_size={DISK_CACHE}")
            options.append(f"journal={self.base}/journal,journal_size={JOURNAL}")
        store = self.device or self.store
        argv = [self.program, "mount", "--cache", CACHE, "-o", ",".join(options), store, self.root]
        self.check(argv, user=self.owner(), env={"HOME": self.work})

    def down(self):
        """Unmounts in order, and waits until everything is durable."""
        umount = ["umount"] if self.mount == "ext4" else [self.program, "umount"]
        self.unmount(umount, self.root, self.owner())

    def down_inner(self, path):
        """Unmounts what a suite has mounted below the directory."""
        self.unmount(["umount"], path, "root")
        self.inner.remove(path)

    def unmount(self, umount, path, user):
        # Processes that were killed may hold files for a moment, and so does one that looks at all
        # mounts of the machine.
        for _ in range(50):
            status, text = run([*umount, path], user=user, log=self.log)
            if status == 0:
                return
            if "busy" not in text:
                break
            time.sleep(0.2)
        raise Failure(f"{path} cannot be unmounted: {text}")

    def remount(self):
        """Unmounts and mounts again: what is read afterwards comes from the device."""
        self.down()
        self.up()

    def verify(self):
        """Unmounts and checks the file system; raises Failure if it is not as it should be."""
        self.down()
        if self.mount == "ext4":
            self.check(["e2fsck", "-f", "-n", self.image])
        else:
            self.check([self.program, "fsck", self.device or self.store])
            if self.mount == "object":
                self.check([self.program, "objects", "--check", self.store])

    def check(self, argv, **options):
        return check(argv, log=self.log, **options)

    def run(self, argv, *, cwd=None, env=None, limit=600, user=None):
        """Runs a command of the suite as the user of the place; its exit status and its text.

        Raises Failure if it does not end in `limit` seconds.
        """
        environment = {"HOME": self.work, "TMPDIR": self.work, **(env or {})}
        status, text = run(
            argv, user=user or self.user, cwd=cwd or self.dir, env=environment, limit=limit,
            log=self.log)
        if status == OUT_OF_TIME:
            raise Failure(f"{argv[0]} did not end in {limit} s\n{text[-2000:]}")
        return status, text

    def espalier(self, *words):
        """Runs the program as the user of the place; gives what it said."""
        return check([self.program, *words], user=self.user, log=self.log)
