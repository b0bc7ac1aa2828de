"""go-fuse's posixtest (a Go module)."""

import pathlib
import re
import shutil

from process import need
from suite import WITH_OBJECT, Suite
from suites.golang import cases_of, go

MODULE = pathlib.Path(__file__).with_name("gomodule")


class Posixtest(Suite):
    name = "posixtest"
    runs = WITH_OBJECT
    quick = WITH_OBJECT
    least = 30

    def version(self):
        need("go")
        return re.search(r"go-fuse/v2 v([0-9.]+)", (MODULE / "go.mod").read_text())[1]

    def prepare(self, work):
        # The build must not write into the repository.
        source = shutil.copytree(MODULE, work / "source")
        self.program = work / "posixtest"
        go("test", "-c", "-o", self.program, ".", cwd=source)

    def run(self, place, quick):
        text = place.run([self.program, "-test.v"], env={"DIR": place.dir})[1]
        cases = cases_of(text)
        cases.pop("Test", None)
        return {name.removeprefix("Test/"): state for name, state in cases.items()}
