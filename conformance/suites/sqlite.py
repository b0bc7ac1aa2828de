"""SQLite's veryquick tests (Debian source): a quarter of a million checks of its own engine."""

import re
import shutil

from process import Failure
from suite import CLASSIC_PLAIN, FAILED, IMAGE_PLAIN, PASSED, ROOTLESS, WRITEBACK_PLAIN, Suite
from tools import source, source_version

SCRIPT = "test/veryquick.test"


class Sqlite(Suite):
    name = "SQLite"
    # Its tests refuse root.
    runs = (IMAGE_PLAIN, CLASSIC_PLAIN, WRITEBACK_PLAIN, ROOTLESS)
    least = 200_000

    def version(self):
        return source_version("sqlite3")

    def prepare(self, work):
        built = source("sqlite3")
        self.source = work / "source"
        self.source.mkdir()
        for name in ("test", "ext"):
            shutil.copytree(built / name, self.source / name)
        shutil.copy(built / "testfixture", self.source)

    def run(self, place, quick):
        argv = [self.source / "testfixture", self.source / SCRIPT, "--verbose=file", "--output=log.txt"]
        text = place.run(argv, limit=3000)[1]
        text += place.run(["cat", "log.txt"])[1]
        ended = re.search(r"^(\d+) errors out of (\d+) tests", text, re.MULTILINE)
        if not ended:
            raise Failure(f"testfixture broke off: {text[-2000:]}")
        cases = dict.fromkeys(re.findall(r"^(\S+)\.\.\. Ok$", text, re.MULTILINE), PASSED)
        failures = re.search(r"^!Failures on these tests: (.*)$", text, re.MULTILINE)
        cases.update(dict.fromkeys(failures[1].split() if failures else [], FAILED))
        return cases
