"""Git's own tests of its fsmonitor hook and of status (Debian source), with `espalier fsmonitor` as
the hook wherever a test sets none."""

import re

from suite import CLASSIC, FAILED, IMAGE, PASSED, SKIPPED, WRITEBACK, Suite
from tools import source, source_version

SCRIPTS = [
    "t7519-status-fsmonitor", "t7508-status", "t7060-wtstatus", "t7061-wtstatus-ignore", "t7300-clean",
    "t3700-add", "t2203-add-intent", "t3903-stash", "t7102-reset",
]
STATES = {"ok": PASSED, "not ok": FAILED}


def cases_of(script, text):
    """The state of each test of a script that speaks TAP. A failure that git itself expects counts
    as passed over."""
    cases = {}
    for state, name, marked in re.findall(r"^(ok|not ok) \d+ (?:- )?(.*?)( # (?:skip|TODO).*)?$", text, re.MULTILINE):
        case = f"{script}: {name}"
        while case in cases:
            case += "'"
        cases[case] = SKIPPED if marked else STATES[state]
    return cases


class GitFsmonitor(Suite):
    name = "git-fsmonitor"
    runs = (IMAGE, CLASSIC, WRITEBACK)
    least = 300

    def version(self):
        source("git/t/helper/test-tool")
        return source_version("git")

    def run(self, place, quick):
        cases = {}
        environment = {"GIT_TEST_INSTALLED": "/usr/bin", "TEST_OUTPUT_DIRECTORY": place.work}
        if place.mount != "ext4":
            environment["GIT_TEST_FSMONITOR"] = f"'{place.program}' fsmonitor"
        for script in SCRIPTS:
            argv = ["bash", f"{script}.sh", f"--root={place.dir}", "--no-color"]
            text = place.run(argv, cwd=source("git") / "t", env=environment, limit=1200)[1]
            cases.update(cases_of(script, text))
        return cases
