"""CPython's own tests of files and of the modules that stand on them (libpython3.11-testsuite)."""

import xml.etree.ElementTree

from process import debian_version, need
from suite import CLASSIC, FAILED, IMAGE, PASSED, ROOTLESS, SKIPPED, WRITEBACK, Suite

PYTHON = "/usr/bin/python3.11"
QUICK = [
    "test_fcntl", "test_file", "test_fileinput", "test_fileio", "test_filecmp", "test_genericpath",
    "test_glob", "test_mmap", "test_ntpath", "test_os", "test_pathlib", "test_posix",
    "test_posixpath", "test_shutil", "test_stat", "test_tarfile", "test_tempfile",
]
REST = [
    "test_bz2", "test_compileall", "test_dbm", "test_dbm_dumb", "test_dbm_gnu", "test_dbm_ndbm",
    "test_gzip", "test_httpservers", "test_import", "test_importlib", "test_io", "test_largefile",
    "test_lzma", "test_mailbox", "test_netrc", "test_py_compile", "test_sendfile", "test_shelve",
    "test_site", "test_sqlite3", "test_subprocess", "test_unicode_file",
    "test_unicode_file_functions", "test_zipapp", "test_zipfile", "test_zipimport",
]


def cases_of(text):
    """The state of each test of a JUnit report. A test with failing parts has several entries."""
    cases = {}
    for case in xml.etree.ElementTree.fromstring(text).iter("testcase"):
        name = case.get("name").split(" (")[0].removeprefix("test.")
        children = {child.tag for child in case}
        state = PASSED
        if children & {"failure", "error"}:
            state = FAILED
        elif "skipped" in children or case.get("result") in ("skipped", "suppressed"):
            state = SKIPPED
        order = [SKIPPED, PASSED, FAILED]
        cases[name] = max(state, cases.get(name, SKIPPED), key=order.index)
    return cases


class CPython(Suite):
    name = "CPython"
    runs = (IMAGE, CLASSIC, WRITEBACK, ROOTLESS)
    quick = (IMAGE, ROOTLESS)
    least = 1000

    def version(self):
        version = debian_version("libpython3.11-testsuite")
        need(PYTHON)
        return version

    def run(self, place, quick):
        report = place.work / "report.xml"
        argv = [PYTHON, "-m", "test", "--tempdir", place.dir, "--junit-xml", report, "--timeout", "300"]
        place.run(argv + QUICK + ([] if quick else REST), env={"TMPDIR": place.dir}, limit=2400)
        return cases_of(report.read_text())
