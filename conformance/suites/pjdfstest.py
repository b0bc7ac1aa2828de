"""pjdfstest (crates.io): the POSIX semantics of the system calls."""

import pathlib
import re
import shutil

from suite import CLASSIC, DEVICE, FAILED, IMAGE, OBJECT, PASSED, SKIPPED, WRITEBACK, Suite
from tools import cargo_tool, cargo_version

CONFIGURATION = pathlib.Path(__file__).with_name("pjdfstest.toml")
STATES = {"ok": PASSED, "FAILED": FAILED, "skipped": SKIPPED}


def cases_of(text):
    """The state of each test: lines of a name and a result; the exit status says less."""
    lines = re.findall(r"^(\S+)\s+(ok|FAILED|skipped)\s*$", text, re.MULTILINE)
    return {name: STATES[state] for name, state in lines}


class Pjdfstest(Suite):
    name = "pjdfstest"
    # It changes users itself.
    runs = (IMAGE, CLASSIC, WRITEBACK, DEVICE, OBJECT)
    quick = (IMAGE, CLASSIC, WRITEBACK, DEVICE, OBJECT)
    least = 390

    def version(self):
        return cargo_version("pjdfstest")

    def prepare(self, work):
        self.program = shutil.copy(cargo_tool("pjdfstest"), work)

    def run(self, place, quick):
        return self.run_in(place, place.dir)

    def run_in(self, place, directory):
        directory.chmod(0o777)
        argv = [self.program, "-c", CONFIGURATION, "-p", directory]
        return cases_of(place.run(argv, env={"NO_COLOR": "1"})[1])
