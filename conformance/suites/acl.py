"""The own tests of acl and attr (Debian sources), with the installed programs.

A test is a script of commands with what they have to say; a case is one command.
"""

import re
import shutil

from process import Missing, debian_version, need
from suite import ALL, FAILED, IMAGE, PASSED, ROOT, ROOTLESS, WRITEBACK, Suite
from tools import source, source_version

# They expect an NFS server's ACLs.
LEFT_OUT = {"nfs"}


class Scripts(Suite):
    runs = ALL
    quick = (IMAGE, WRITEBACK, ROOTLESS)

    def version(self):
        need("setfacl", "setfattr", "perl")
        tested, installed = source_version(self.name), debian_version(self.name)
        if tested != installed:
            raise Missing(f"the sources of {self.name} are {tested}, and {installed} is installed")
        return installed

    def prepare(self, work):
        self.tests = shutil.copytree(source(self.name) / "test", work / "test")

    def run(self, place, quick):
        cases = {}
        # A script works in a directory that it makes beside itself: it has to lie on the mount.
        place.run(["cp", "-r", self.tests, place.dir / "test"])
        for script in sorted(self.tests.rglob("*.test")):
            test = script.relative_to(self.tests)
            if test.parts[0] in LEFT_OUT or test.parts[0] == "root" and place.user != ROOT:
                continue
            tests = place.dir / "test"
            text = place.run([tests / "run", tests / test])[1]
            found = re.findall(r"^\[(\d+)\] \$ (.*?) -- (ok|failed)$", text, re.MULTILINE)
            for line, _, state in found:
                cases[f"{test}:{line}"] = PASSED if state == "ok" else FAILED
        return cases


class Acl(Scripts):
    name = "acl"
    least = 200


class Attr(Scripts):
    name = "attr"
    least = 40
