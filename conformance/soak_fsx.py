"""fsx for a given time on several mounts, each run with a new seed; counts what it did.

A mount stays for many runs, and is now and then unmounted, checked and mounted again. Prints a line
of JSON at the end. Each run that finds a wrong byte is printed with its seed.
"""

import argparse
import json
import os
import pathlib
import shutil
import sys
import tempfile
import threading
import time

from place import MOUNTS, Place
from process import USER, Failure
from suites.fsx import CONFIGURATION
from tools import cargo_tool

# Runs on a mount between two checks.
RUNS = 5
OPERATIONS = 20_000


def options():
    parser = argparse.ArgumentParser(prog="scripts/soak-fsx", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--mount", action="append", choices=[m for m in MOUNTS if m != "ext4"],
                        help="only these (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (default 2)")
    parser.add_argument("--seed", type=int, default=None, help="the first seed (default: the time)")
    return parser.parse_args()


class Soak:
    def __init__(self, chosen, program, fsx, configuration):
        self.chosen, self.program, self.fsx, self.configuration = chosen, program, fsx, configuration
        self.end = time.monotonic() + 60 * chosen.minutes
        self.lock = threading.Lock()
        self.seed = chosen.seed if chosen.seed is not None else int(time.time())
        self.operations = dict.fromkeys(chosen.mount or [m for m in MOUNTS if m != "ext4"], 0)
        self.waiting = list(self.operations)
        self.checks, self.failures, self.busy = 0, [], 0.0

    def next_seed(self):
        with self.lock:
            self.seed += 1
            return self.seed

    def runs(self, mount):
        """Makes some runs on one mount, and checks it."""
        user = USER if mount == "rootless" else "root"
        with Place(self.program, mount, user, None) as place:
            for _ in range(RUNS):
                if time.monotonic() > self.end:
                    break
                self.one(place, mount)
            place.verify()
            self.checks += 1

    def one(self, place, mount):
        seed, begin = self.next_seed(), time.monotonic()
        argv = [self.fsx, "-f", self.configuration, "-N", OPERATIONS, "-S", seed, "-P", place.work,
                place.dir / "file"]
        status, text = place.run(argv, limit=1800)
        with self.lock:
            self.busy += time.monotonic() - begin
            self.operations[mount] += OPERATIONS if status == 0 else 0
            if status != 0:
                self.failures.append({"seed": seed, "mount": mount, "said": text[-3000:]})
                print(f"soak-fsx: seed {seed} on {mount}: exit status {status}\n{text[-3000:]}", flush=True)

    def worker(self):
        """Takes the mounts in turn."""
        while time.monotonic() < self.end:
            with self.lock:
                mount = self.waiting.pop(0)
            try:
                self.runs(mount)
            except Failure as failure:
                with self.lock:
                    self.failures.append({"mount": mount, "said": str(failure)})
                print(f"soak-fsx: {mount}: {failure}", flush=True)
            with self.lock:
                self.waiting.append(mount)


def main():
    chosen = options()
    if os.geteuid() != 0:
        sys.exit("soak-fsx: it mounts as root and as an ordinary user, and needs root for that")
    top = pathlib.Path(__file__).resolve().parent.parent
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", top / "target")).resolve()
    with tempfile.TemporaryDirectory(prefix="c-") as work:
        work = pathlib.Path(work)
        work.chmod(0o755)
        program = shutil.copy(os.environ.get("ESPALIER", target / "release/espalier"), work)
        soak = Soak(chosen, program, shutil.copy(cargo_tool("fsx"), work), shutil.copy(CONFIGURATION, work))
        begin = time.monotonic()
        jobs = max(1, min(chosen.jobs, len(soak.operations)))
        threads = [threading.Thread(target=soak.worker) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    hours = (time.monotonic() - begin) / 3600
    total = sum(soak.operations.values())
    print(json.dumps({
        "operations": total, "by_mount": soak.operations, "hours": round(hours, 3),
        "operations_per_hour_of_one_fsx": round(total / max(soak.busy / 3600, 1e-9)),
        "checks": soak.checks, "failures": soak.failures, "last_seed": soak.seed,
    }))
    return 1 if soak.failures or total == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
