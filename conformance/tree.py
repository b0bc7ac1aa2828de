"""Makes a tree of everything that a copy has to keep: `tree.py DIR COUNT`.

Holes, hard links, odd names, times of nanoseconds, modes, attributes, access control lists; as root
also owners, devices and capabilities.
"""

import os
import random
import socket
import stat
import subprocess
import sys


def fill(path, rng):
    """A file of one of many shapes."""
    with open(path, "wb") as file:
        kind = rng.randrange(5)
        if kind == 0:
            file.truncate(rng.randrange(1, 1 << 24) // 4096 * 4096 + 8192)
        elif kind == 1:
            # A hole between data, on whole pages.
            file.write(rng.randbytes(8192))
            file.seek(1 << 20)
            file.write(rng.randbytes(rng.randrange(1, 9000)))
        else:
            file.write(rng.randbytes(rng.choice([0, 1, 100, 4095, 4096, 4097, 70000, 300000])))


def decorate(path, rng):
    """Attributes, lists, owners and times. Times last: all else changes them."""
    regular = os.path.isfile(path) and not os.path.islink(path)
    link = os.path.islink(path)
    folder = os.path.isdir(path) and not link
    if os.geteuid() == 0 and rng.randrange(3) == 0:
        os.chown(path, rng.randrange(70000), rng.randrange(70000), follow_symlinks=False)
    if not link:
        # The ordinary user has to get into its own directories.
        modes = [0o755, 0o700, 0o1755, 0o2711] if folder else [0o644, 0o600, 0o755, 0o4755, 0o2755, 0o640]
        os.chmod(path, rng.choice(modes))
        for number in range(rng.randrange(3) if regular or folder else 0):
            os.setxattr(path, f"user.n{number}", rng.randbytes(rng.choice([0, 10, 1000])))
        if rng.randrange(4) == 0 and (regular or folder):
            entries = "u:bin:r,g:tty:rw,m::rwx" + (",d:u:bin:rwx,d:g:tty:r" if folder else "")
            subprocess.run(["setfacl", "-m", entries, path], check=True)
        if os.geteuid() == 0 and regular and rng.randrange(8) == 0:
            # Version 2, effective: cap_net_raw.
            os.setxattr(path, "security.capability", bytes.fromhex("0100000200200000000000000000000000000000"))
            os.setxattr(path, "trusted.kept", b"yes")
    moment = rng.randrange(10**9 * 2 * 10**9)
    os.utime(path, ns=(moment, moment), follow_symlinks=False)


def make(top, count, seed=1):
    rng = random.Random(seed)
    directories, paths = [top], []
    os.makedirs(top, exist_ok=True)
    for number in range(count):
        odd = rng.choice(["", " with blanks", "-ünïcödé", "\x01\n", "\udcff\udc80", "\\", "'", "x" * 200])
        path = os.path.join(rng.choice(directories), f"n{number}{odd}")
        kind = rng.randrange(12)
        if kind < 2:
            os.mkdir(path)
            directories.append(path)
        elif kind == 2:
            os.symlink(f"../somewhere/{number}", path)
        elif kind == 3:
            os.mkfifo(path)
        elif kind == 4 and os.geteuid() == 0:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(rng.randrange(300), rng.randrange(70000)))
        elif kind == 5 and len(path) < 100:
            socket.socket(socket.AF_UNIX).bind(path)
        elif kind == 6 and paths:
            os.link(rng.choice(paths), path, follow_symlinks=False)
        else:
            fill(path, rng)
            paths.append(path)
    for directory, folders, files in os.walk(top, topdown=False):
        for name in sorted(folders) + sorted(files):
            decorate(os.path.join(directory, name), rng)
    decorate(top, rng)
    os.chmod(top, 0o755)


if __name__ == "__main__":
    make(sys.argv[1], int(sys.argv[2]))
