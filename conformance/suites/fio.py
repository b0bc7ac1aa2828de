"""fio with checksums in every block: written, verified, and verified again after a remount."""

import json

from process import debian_version
from suite import FAILED, IMAGE, PASSED, ROOTLESS, WITH_OBJECT, WRITEBACK, Suite

COMMON = ["--verify=crc32c", "--verify_fatal=1", "--randseed=7", "--group_reporting"]
JOBS = {
    "psync": ["--ioengine=psync", "--rw=randwrite", "--bsrange=1k-64k"],
    "psync over what is there": ["--ioengine=psync", "--rw=randwrite", "--bs=4k", "--overwrite=1"],
    "psync, fdatasync": ["--ioengine=psync", "--rw=write", "--bsrange=512-16k", "--fdatasync=64"],
    "psync, one writer and reader": ["--ioengine=psync", "--rw=randrw", "--bs=8k"],
    "libaio direct": ["--ioengine=libaio", "--direct=1", "--iodepth=16", "--rw=randwrite", "--bsrange=4k-128k"],
    "libaio direct sequential": ["--ioengine=libaio", "--direct=1", "--iodepth=8", "--rw=write", "--bs=64k"],
    "io_uring": ["--ioengine=io_uring", "--iodepth=16", "--rw=randwrite", "--bsrange=4k-64k"],
    "io_uring direct": ["--ioengine=io_uring", "--direct=1", "--iodepth=16", "--rw=randwrite", "--bs=16k"],
    "mmap": ["--ioengine=mmap", "--rw=randwrite", "--bsrange=1k-16k"],
    "splice": ["--ioengine=splice", "--rw=randwrite", "--bs=4k"],
}


def verdict(status, text):
    """fio prints JSON after messages, if there are any; a job's error is a number in it."""
    try:
        jobs = json.loads(text[text.index("{\n"):])["jobs"]
    except ValueError:
        return FAILED
    worked = sum(job["read"]["io_bytes"] + job["write"]["io_bytes"] for job in jobs) > 0
    clean = status == 0 and all(job["error"] == 0 for job in jobs) and "verify:" not in text
    return PASSED if worked and clean else FAILED


class Fio(Suite):
    name = "fio"
    runs = WITH_OBJECT
    quick = (IMAGE, WRITEBACK, ROOTLESS)
    least = 2 * len(JOBS)

    def version(self):
        return debian_version("fio")

    def run(self, place, quick):
        cases = {}
        for again in (False, True):
            for name, options in JOBS.items():
                file = place.dir / name.replace(" ", "-").replace(",", "")
                argv = ["fio", "--name=job", f"--filename={file}", *COMMON, *options,
                        "--output-format=json", "--size=8M" if quick else "--size=24M"]
                argv += ["--verify_only=1"] if again else []
                status, text = place.run(argv, limit=300)
                cases[f"{name}{', after a remount' if again else ''}"] = verdict(status, text)
            if not again:
                place.remount()
        return cases
