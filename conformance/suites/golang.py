"""The file tests of Go's standard library, from the installed Go."""

import os
import pathlib
import re

from process import Missing, check, need
from suite import CLASSIC, FAILED, IMAGE, PASSED, ROOTLESS, SKIPPED, WRITEBACK, DEVICE, Suite

PACKAGES = [
    "archive/tar", "archive/zip", "cmd/go/internal/lockedfile",
    "cmd/go/internal/lockedfile/internal/filelock", "internal/poll", "io/fs", "io/ioutil", "os",
    "path/filepath",
]
# It builds a program, with nothing that was built before.
SLOW = "^TestExecutableDeleted$"
STATES = {"PASS": PASSED, "FAIL": FAILED, "SKIP": SKIPPED}


def go(*words, cwd, env=None):
    """Runs the go command, which may fetch modules, and works offline if it has them."""
    home = {name: os.environ[name] for name in ("HOME", "GOPROXY", "GOFLAGS", "GOMODCACHE", "GOCACHE")
            if name in os.environ}
    return check(["go", *words], cwd=cwd, env={**home, **(env or {})}, limit=900)


def cases_of(text):
    """The state of each test and subtest, from the output of -test.v."""
    lines = re.findall(r"^ *--- (PASS|FAIL|SKIP): (.+) \([0-9.]+s\)$", text, re.MULTILINE)
    return {name: STATES[state] for state, name in lines}


class Golang(Suite):
    name = "Go library"
    runs = (IMAGE, CLASSIC, WRITEBACK, DEVICE, ROOTLESS)
    quick = (IMAGE, ROOTLESS)
    least = 800

    def version(self):
        need("go")
        self.root = pathlib.Path(go("env", "GOROOT", cwd="/").strip())
        if not (self.root / "src/os/os_test.go").exists():
            raise Missing(f"{self.root} has no tests of the standard library")
        return go("env", "GOVERSION", cwd="/").strip().removeprefix("go")

    def prepare(self, work):
        self.work = work
        for package in PACKAGES:
            program = work / package.replace("/", "-")
            go("test", "-c", "-o", program, ".", cwd=self.root / "src" / package,
               env={"GOTOOLCHAIN": "local"})

    def run(self, place, quick):
        cases = {}
        for package in PACKAGES:
            program = self.work / package.replace("/", "-")
            # The source folder has the tests' data; files are made in TMPDIR.
            selection = ["-test.short", f"-test.skip={SLOW}"] if quick else []
            text = place.run([program, "-test.v", *selection],
                             cwd=self.root / "src" / package, env={"TMPDIR": place.dir})[1]
            found = cases_of(text)
            ended = re.search(r"^(PASS|FAIL)$", text, re.MULTILINE)
            found["ends"] = PASSED if ended else FAILED
            cases.update({f"{package}: {name}": state for name, state in found.items()})
        return cases
