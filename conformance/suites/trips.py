"""Round trips: a tree of everything is copied here, from here to here, and back, and compared.

rsync, cp and tar with all that they can keep: attributes, access control lists, holes, hard links,
owners, devices, times of nanoseconds.
"""

import pathlib
import shutil
import stat

from process import Failure, debian_version
from suite import FAILED, IMAGE, PASSED, ROOTLESS, WITH_OBJECT, Suite

TOP = pathlib.Path(__file__).parent.parent
# The mode in a line of a manifest.
SOCKET = f" {stat.S_IFSOCK >> 12:#o}"
COPIES = {
    "rsync": "rsync -aHAXS --numeric-ids {a}/ {b}",
    "rsync, in place": "rsync -aHAXS --inplace --numeric-ids {a}/ {b}",
    "cp": "cp -a --sparse=always {a} {b}",
    "cp, cloned if it can": "cp -a --reflink=auto {a} {b}",
    "tar": "mkdir {b} && tar -C {a} --acls --xattrs --xattrs-include='*' -S --format=posix --numeric-owner -cf {b}.tar . && "
           "tar -C {b} --acls --xattrs --xattrs-include='*' -S -p --numeric-owner --same-owner -xf {b}.tar",
}


class RoundTrips(Suite):
    name = "round trips"
    runs = WITH_OBJECT
    quick = (IMAGE, ROOTLESS)
    least = 3 * len(COPIES)

    def version(self):
        versions = [f"{package} {debian_version(package)}" for package in ("rsync", "coreutils", "tar")]
        debian_version("acl")
        return ", ".join(versions)

    def prepare(self, work):
        self.scripts = work
        for name in ("tree.py", "manifest.py"):
            shutil.copy(TOP / name, work)

    def manifest(self, place, directory):
        status, text = place.run(["python3", self.scripts / "manifest.py", directory])
        if status != 0:
            raise Failure(f"the copy {directory} cannot be read: {text[-2000:]}")
        return text.splitlines()

    def run(self, place, quick):
        cases = {}
        source = place.work / "tree"
        status, text = place.run(["python3", self.scripts / "tree.py", source, 80 if quick else 300])
        if status != 0:
            raise Failure(f"the tree cannot be made: {text[-2000:]}")
        wanted = self.manifest(place, source)
        copies = []

        def compare(name, directory):
            different = set(wanted) ^ set(self.manifest(place, directory))
            if name.startswith("tar"):
                # An archive holds no sockets.
                different = {line for line in different if SOCKET not in line}
            with open(place.log, "a") as file:
                file.writelines(f"{name}: {line}\n" for line in sorted(different))
            cases[name] = FAILED if different else PASSED

        for number, (name, command) in enumerate(COPIES.items()):
            start = source
            for way in ("in", "within", "out"):
                goal = (place.work if way == "out" else place.dir) / f"{way}{number}"
                status, _ = place.run(["bash", "-e", "-c", command.format(a=start, b=goal)])
                case = f"{name}, {way}"
                cases[case] = FAILED
                if status == 0:
                    compare(case, goal)
                    copies += [(f"{case}, after a remount", goal)] if way != "out" else []
                start = goal
        place.remount()
        for case, directory in copies:
            compare(case, directory)
        return cases
