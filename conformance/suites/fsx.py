"""fsx (crates.io): random operations on one file, compared with a model of it."""

import pathlib
import shutil

from suite import ALL, FAILED, PASSED, WITH_OBJECT, Suite
from tools import cargo_tool, cargo_version

CONFIGURATION = pathlib.Path(__file__).with_name("fsx.toml")
QUICK_SEEDS, SEEDS = range(1, 2), range(1, 21)
OPERATIONS = 8000


class Fsx(Suite):
    name = "fsx"
    runs = WITH_OBJECT
    quick = ALL
    least = len(QUICK_SEEDS)

    def version(self):
        return cargo_version("fsx")

    def prepare(self, work):
        self.program = shutil.copy(cargo_tool("fsx"), work)
        self.configuration = shutil.copy(CONFIGURATION, work)

    def run(self, place, quick):
        cases = {}
        for seed in QUICK_SEEDS if quick else SEEDS:
            argv = [self.program, "-f", self.configuration, "-N", OPERATIONS, "-S", seed,
                    "-P", place.work, place.dir / "file"]
            status, _ = place.run(argv)
            cases[f"{OPERATIONS} operations of seed {seed}"] = PASSED if status == 0 else FAILED
        return cases
