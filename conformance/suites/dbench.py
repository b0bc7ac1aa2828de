"""dbench: the calls of a file server's clients, several at a time."""

import re
import threading

from process import debian_version
from suite import ALL, FAILED, PASSED, Suite

CLIENTS = {1: [], 4: [], 8: ["--sync-dir"], 16: ["--sync"]}


class Dbench(Suite):
    name = "dbench"
    runs = ALL
    least = len(CLIENTS)
    # Two at a time take each other's semaphores.
    alone = threading.Lock()

    def version(self):
        return debian_version("dbench")

    def run(self, place, quick):
        cases = {}
        for clients, options in CLIENTS.items():
            argv = ["dbench", "-D", place.dir, "-c", "/usr/share/dbench/client.txt", "-t", "10",
                    *options, clients]
            with self.alone:
                status, text = place.run(argv, limit=300)
            # It goes on after a call that did not end as it was recorded, and says so.
            clean = status == 0 and re.search(r"^Throughput [1-9]", text, re.MULTILINE)
            complaint = re.search(r"^\[\d+\]|failed|ERROR", text, re.MULTILINE)
            cases[f"{clients} clients"] = PASSED if clean and not complaint else FAILED
        return cases
