"""stress-ng's file system class, each stressor by itself for a few seconds, with --verify."""

import re
import threading

from process import check, debian_version
from suite import CLASSIC, FAILED, IMAGE, PASSED, ROOTLESS, SKIPPED, WRITEBACK, Suite

# They are not about the file system below, need another one, or may hang the machine (bind-mount).
LEFT_OUT = {"bind-mount", "binderfs", "procfs", "sysfs", "verity"}
# `io` calls syncfs on every mount of the machine, and takes errors of other mounts for failures:
# with -o writeback the kernel reports there what `inode-flags` has written to immutable files. So
# only one run is made at a time.
ALONE = threading.Lock()
# What the exit status means: with 3 a resource is missing, with 4 the system lacks the call.
STATES = {0: PASSED, 3: SKIPPED, 4: SKIPPED}


class StressNg(Suite):
    name = "stress-ng"
    runs = (IMAGE, CLASSIC, WRITEBACK, ROOTLESS)
    quick = (IMAGE,)
    least = 40

    def version(self):
        return debian_version("stress-ng")

    def prepare(self, work):
        text = check(["stress-ng", "--class", "filesystem?"])
        self.stressors = sorted(set(text.split(":", 1)[1].split()) - LEFT_OUT)

    def run(self, place, quick):
        with ALONE:
            return self.run_alone(place, quick)

    def run_alone(self, place, quick):
        cases = {}
        for name in self.stressors:
            argv = ["stress-ng", f"--{name}", "2", "--verify", "--temp-path", place.dir,
                    "--timeout", "1" if quick else "3"]
            status, text = place.run(argv, limit=180)
            cases[name] = STATES.get(status, FAILED)
            # A stressor may complain and end well.
            if re.search(r"stress-ng: (fail|error):", text):
                cases[name] = FAILED
        return cases
