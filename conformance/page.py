"""docs/conformance.md: its table, made of results, and its list of differences, which people write.

A difference is a case that fails, is skipped or is absent on Espalier and is better on ext4 in the
same session. Each one has to be listed with its reason, and what is listed has to be there.
"""

import collections
import json

from suite import FAILED, PASSED, SKIPPED

BEGIN, END = "<!-- made by make conformance: begin -->", "<!-- made by make conformance: end -->"
ABSENT = "absent"


def listed(text):
    """The rows `| suite | `case` | reason |` of the page: reasons by suite, mount and case.

    The first cell may name a mount, "suite, mount", if the case differs there only; the mount is
    empty otherwise.
    """
    reasons = {}
    for line in text.split(END)[-1].splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 3 and cells[1].startswith("`"):
            suite, _, mount = cells[0].partition(", ")
            reasons[suite, mount, cells[1].strip("`")] = cells[2]
    return reasons


def differences(result, reference):
    """Pairs of case and words for each case that is worse than on ext4."""
    found = []
    for case, there in sorted(reference["cases"].items()):
        here = result["cases"].get(case, ABSENT)
        if here == there or here == PASSED or there == FAILED and here == SKIPPED:
            continue
        if there == FAILED and here == ABSENT:
            continue
        found.append((case, f"{here}; on ext4: {there}"))
    for case, here in sorted(result["cases"].items()):
        if case not in reference["cases"] and here == FAILED:
            found.append((case, f"{here}; on ext4: {ABSENT}"))
    return found


def reference_of(result, results):
    """The result of the same suite and user on ext4."""
    for other in results:
        if other["mount"] == "ext4" and other["suite"] == result["suite"] and other["user"] == result["user"]:
            return other
    return None


def judge(results, reasons):
    """What is wrong with the results, one line each."""
    wrong, differing, tried = [], set(), set()
    for result in results:
        suite, mount = result["suite"], result["mount"]
        where = f"{suite} on {mount} as {result['user']}"
        if result["broken"]:
            wrong.append(f"{where}: {result['broken']}")
        if mount == "ext4" or result["broken"]:
            continue
        reference = reference_of(result, results)
        if reference is None:
            wrong.append(f"{where}: there is no run on ext4 to compare with")
            continue
        for case in result["cases"].keys() | reference["cases"].keys():
            tried |= {(suite, "", case), (suite, mount, case)}
        for case, words in differences(result, reference):
            keys = {(suite, "", case), (suite, mount, case)}
            differing |= keys
            if not keys & reasons.keys():
                wrong.append(f"{where}: {case}: {words}")
    for key, reason in reasons.items():
        name = ", ".join(filter(None, key))
        if len(reason) < 20:
            wrong.append(f"{name} is listed without a reason")
        if key in tried and key not in differing:
            wrong.append(f"{name} does not differ from ext4: take it out of docs/conformance.md")
    return wrong


def counts(result):
    """Cases, passed, skipped, failed."""
    states = collections.Counter(result["cases"].values())
    return len(result["cases"]), states[PASSED], states[SKIPPED], states[FAILED]


def table(results):
    """The generated part of the page."""
    lines = [
        "| suite | version | mount | user | cases | passed | skipped | failed "
        "| ext4: passed | skipped | failed | s |",
        "|---|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    both = {}
    for result in results:
        if result["mount"] == "ext4":
            continue
        reference = reference_of(result, results)
        cells = [result["suite"], result["version"], result["mount"], result["user"]]
        cells += [f"{n:,}" for n in counts(result) + counts(reference)[1:]]
        lines.append(f"| {' | '.join(cells)} | {result['seconds']:.0f} |")
        for case, state in result["cases"].items():
            if state == FAILED and reference["cases"].get(case) == FAILED:
                both.setdefault((result["suite"], result["user"]), set()).add(case)
    if both:
        lines += ["", "Cases that fail on ext4 as well:", "", "| suite | user | cases |", "|---|---|---|"]
        for (suite, user), cases in sorted(both.items()):
            lines.append(f"| {suite} | {user} | {', '.join(f'`{case}`' for case in sorted(cases))} |")
    return "\n".join(lines)


def write(path, results):
    """Puts the table of `results` into the page."""
    text = path.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    path.write_text(f"{before}{BEGIN}\n\n{table(results)}\n\n{END}{after}")


def load(*directories):
    """The results that are kept, in the order of the suites' names.

    Those of a suite are taken from the first of the directories that has them.
    """
    files = {}
    for directory in reversed(directories):
        files.update({path.name: path for path in directory.glob("*.json")})
    results = []
    for name in sorted(files):
        results += json.loads(files[name].read_text())
    return results
