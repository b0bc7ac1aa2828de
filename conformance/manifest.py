"""All that can be seen of a tree: one line for each entry, to compare trees after a copy.

Run as a program it prints the lines of a tree: `manifest.py DIR`. It is a program because the
ordinary user has to read the tree.
"""

import hashlib
import os
import stat
import sys


def holes(path, size):
    """Whether the middle of a file that is all zeros there takes no space."""
    with open(path, "rb") as file:
        try:
            return os.lseek(file.fileno(), 0, os.SEEK_HOLE) < size
        except OSError:
            return False


def line(top, path, names):
    status = os.lstat(path)
    words = [oct(status.st_mode), f"{status.st_uid}:{status.st_gid}", str(status.st_mtime_ns)]
    # Names of one file form a group, named by its first name.
    words.append(f"{status.st_nlink} {names.setdefault(status.st_ino, os.path.relpath(path, top))!r}"
                 if not stat.S_ISDIR(status.st_mode) else "directory")
    if stat.S_ISLNK(status.st_mode):
        words.append(repr(os.readlink(path)))
    if stat.S_ISREG(status.st_mode):
        with open(path, "rb") as file:
            words.append(f"{status.st_size} {hashlib.file_digest(file, 'sha256').hexdigest()}")
        words.append("sparse" if holes(path, status.st_size) else "full")
    if stat.S_ISBLK(status.st_mode) or stat.S_ISCHR(status.st_mode):
        words.append(hex(status.st_rdev))
    for name in sorted(os.listxattr(path, follow_symlinks=False)):
        words.append(f"{name}={os.getxattr(path, name, follow_symlinks=False)!r}")
    return f"{os.path.relpath(path, top)!r} {' '.join(words)}"


def manifest(top):
    """The lines of a tree, ordered by path."""
    paths = [top]
    for directory, directories, files in os.walk(top):
        paths += [os.path.join(directory, name) for name in directories + files]
    names = {}
    return [line(top, path, names) for path in sorted(paths)]


if __name__ == "__main__":
    print("\n".join(manifest(sys.argv[1])))
