"""overlayfs with its lower and its upper directory on the mount: pjdfstest in it, and a script.

The script changes a merged tree in all ways that overlayfs keeps in the upper directory (whiteouts,
opaque directories, copied-up files, redirected directories), and looks again after the overlay and
the file system below were mounted anew.
"""

import pathlib
import platform

from process import Failure
from suite import CLASSIC, DEVICE, FAILED, IMAGE, PASSED, WRITEBACK
from suites.pjdfstest import Pjdfstest

TOP = pathlib.Path(__file__).parent.parent
VARIANTS = {
    "plain": "",
    "redirect_dir": ",redirect_dir=on",
    "metacopy": ",redirect_dir=on,metacopy=on",
}
MAKE = r"""
mkdir -p lower/{a,b,c}/{x,y} upper work merged
for n in $(seq 200); do head -c $((n * 531)) /dev/zero | tr '\0' "$((n % 10))" >lower/a/x/f$n; done
ln lower/a/x/f1 lower/a/x/g1; ln -s f2 lower/a/x/l2; mkfifo lower/b/p; mknod lower/b/n c 1 3
setfattr -n user.k -v v lower/a/x/f3; setfacl -m u:bin:r lower/a/x/f4; chmod 4755 lower/a/x/f5
"""
CHANGE = [
    ("append to a lower file", "echo more >>a/x/f10; test $(stat -c %s a/x/f10) = 5315; tail -n 1 a/x/f10 | grep -q more"),
    ("change only its mode", "chmod 600 a/x/f11; test $(stat -c %a a/x/f11) = 600; test $(head -c 1 a/x/f11) = 1"),
    ("remove a lower file", "rm a/x/f12; ! test -e a/x/f12; ! ls a/x | grep -qx f12"),
    ("remove and make again", "rm a/x/f13; echo new >a/x/f13; grep -qx new a/x/f13"),
    ("remove a lower directory", "rm -r b/y; ! test -e b/y"),
    ("an opaque directory", "rm -r a/y; mkdir a/y; touch a/y/z; test $(ls a/y | wc -l) = 1"),
    ("rename a file", "mv a/x/f14 b/x/r14; test -e b/x/r14; ! test -e a/x/f14"),
    ("rename over a lower file", "mv a/x/f15 a/x/f16; test $(stat -c %s a/x/f16) = 7965"),
    ("rename a lower directory", "mv c d; test -d d/x; ! test -e c"),
    ("attributes are copied up", "echo x >>a/x/f3; test $(getfattr --only-values -n user.k a/x/f3) = v"),
    ("lists are copied up", "echo x >>a/x/f4; getfacl -c a/x/f4 | grep -q user:bin:r"),
    ("a new attribute", "setfattr -n user.n -v w a/x/f17; test $(getfattr --only-values -n user.n a/x/f17) = w"),
    ("a hard link to a lower file", "ln a/x/f18 b/x/h18; cmp a/x/f18 b/x/h18"),
    ("a symbolic link", "test $(readlink a/x/l2) = f2; rm a/x/l2; ln -s f3 a/x/l2"),
    ("a device", "test -c b/n; mv b/n b/m; test -c b/m"),
    ("a mapping", "python3 -c 'import mmap; f = open(\"a/x/f19\", \"r+b\"); m = mmap.mmap(f.fileno(), 0); m[0:3] = b\"abc\"; m.flush()'; test $(head -c 3 a/x/f19) = abc"),
    ("an open file that is removed", "exec 3<>a/x/f20; rm a/x/f20; echo y >&3; exec 3>&-"),
    ("the lower tree is as before", "test $(ls ../lower/a/x | wc -l) = 202; test $(stat -c %s ../lower/a/x/f10) = 5310"),
]
LOOK = ("find . -printf '%p %y %m %s %n %l\\n' | sort; find . -type f | sort | xargs sha256sum")


class Overlay(Pjdfstest):
    name = "overlayfs"
    runs = (IMAGE, CLASSIC, WRITEBACK, DEVICE)
    quick = (IMAGE,)
    least = 390 + 2 * len(CHANGE)

    def version(self):
        return f"{platform.release().split('-')[0]}, pjdfstest {super().version()}"

    def mount(self, place, directory, options):
        merged = directory / "merged"
        paths = f"lowerdir={directory}/lower,upperdir={directory}/upper,workdir={directory}/work"
        place.inner.insert(0, merged)
        place.check(["mount", "-t", "overlay", "overlay", "-o", paths + options, merged])
        return merged

    def run(self, place, quick):
        cases = {}
        shell = ["bash", "-e", "-o", "pipefail", "-c"]
        for name, options in VARIANTS.items():
            directory = place.dir / name
            directory.mkdir()
            status, text = place.run([*shell, MAKE], cwd=directory)
            if status != 0:
                raise Failure(f"the tree cannot be made: {text[-2000:]}")
            merged = self.mount(place, directory, options)
            for case, script in CHANGE:
                status, _ = place.run([*shell, script], cwd=merged)
                cases[f"{name}: {case}"] = PASSED if status == 0 else FAILED
            before = place.run([*shell, LOOK], cwd=merged)
            place.down_inner(merged)
            place.remount()
            self.mount(place, directory, options)
            same = before[0] == 0 and place.run([*shell, LOOK], cwd=merged) == before
            cases[f"{name}: the same after a remount"] = PASSED if same else FAILED
            place.down_inner(merged)
        directory = place.dir / "p"
        for part in ("lower", "upper", "work", "merged"):
            (directory / part).mkdir(parents=True)
        merged = self.mount(place, directory, "")
        cases.update(self.run_in(place, merged))
        place.down_inner(merged)
        return cases
