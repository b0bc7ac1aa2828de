"""Runs suites at their places, two at a time, and compares each with the same on ext4."""

import argparse
import concurrent.futures
import json
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time

import page
from place import Place
from process import USER, Failure, Missing, end_all, need
from suite import PASSED, FAILED, ROOT
from suites import SUITES

TOP = pathlib.Path(__file__).resolve().parent.parent
PAGE = TOP / "docs/conformance.md"


def options():
    parser = argparse.ArgumentParser(
        prog="scripts/conformance", description=__doc__,
        epilog="ESPALIER names the program to test (default: the release build). Root only.")
    parser.add_argument("suite", nargs="*", help="only these (default: all)")
    parser.add_argument("--quick", action="store_true", help="the runs and cases of make test")
    parser.add_argument("--mount", action="append", help="only on this mount, and on ext4")
    parser.add_argument("--write", action="store_true", help="write the table of docs/conformance.md")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (default 2)")
    parser.add_argument("--list", action="store_true", help="list suites and their runs")
    return parser.parse_args()


def target():
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", TOP / "target")).resolve()


def file_name(suite):
    return suite.name.replace(" ", "-")


def logfile(out, suite, run):
    return out / f"{file_name(suite)}-{'-'.join(run)}.log"


def runs_of(suite, chosen):
    """The runs of a suite that are asked for, those on ext4 first."""
    runs = [run for run in (suite.quick if chosen.quick else suite.runs)
            if not chosen.mount or run[0] in chosen.mount]
    users = dict.fromkeys(user for _, user in runs)
    return [("ext4", user) for user in users] + runs


def one(suite, version, mount, user, quick, program, log):
    """Runs a suite at a place; gives the result as it is kept."""
    log.unlink(missing_ok=True)
    cases, broken, begin = {}, None, time.monotonic()
    try:
        with Place(program, mount, USER if user != ROOT else ROOT, log) as place:
            cases = suite.run(place, quick)
            place.verify()
        if len(cases) < suite.least:
            broken = f"it ran {len(cases)} cases, fewer than {suite.least}"
    except Failure as failure:
        broken = str(failure)
    except Exception as error:
        broken = f"{type(error).__name__}: {error}"
    return {
        "suite": suite.name, "version": version, "mount": mount, "user": user, "cases": cases,
        "broken": broken, "seconds": time.monotonic() - begin,
    }


def prepared(chosen, work):
    """The suites that can run, with their versions. A tool that is missing is a failure in CI."""
    suites, missing = [], []
    names = [suite.name for suite in SUITES]
    for name in chosen.suite:
        if name not in names:
            sys.exit(f"conformance: there is no suite '{name}'; the suites are {', '.join(names)}")
    for suite in SUITES:
        if chosen.suite and suite.name not in chosen.suite or not runs_of(suite, chosen):
            continue
        directory = work / file_name(suite)
        directory.mkdir()
        try:
            need("mkfs.ext4", "setpriv", "losetup")
            version = suite.version()
            suite.prepare(directory)
            suites.append((suite, version))
        except Missing as error:
            missing.append(f"{suite.name}: {error}")
            print(f"conformance: SKIPPED {suite.name}: {error}", flush=True)
    return suites, missing


def show(result, reference):
    cases, passed, skipped, failed = page.counts(result)
    print(f"{result['suite']:<14} {result['mount']:<10} {result['user']:<5} {cases:>6} cases: {passed} "
          f"passed, {skipped} skipped, {failed} failed; {result['seconds']:.1f} s", flush=True)
    if result["broken"]:
        print(f"    BROKEN OFF: {result['broken']}", flush=True)
    elif reference is not None:
        for case, words in page.differences(result, reference)[:40]:
            print(f"    {case}: {words}", flush=True)


def run_all(suites, chosen, program, out):
    """Makes all runs, and keeps the results of each suite in a file as soon as it is done."""
    results = []
    with concurrent.futures.ThreadPoolExecutor(chosen.jobs) as pool:
        waiting = []
        for suite, version in suites:
            runs = runs_of(suite, chosen)
            futures = [pool.submit(one, suite, version, *run, chosen.quick, program, logfile(out, suite, run))
                       for run in runs]
            waiting.append((suite, futures))
        try:
            for suite, futures in waiting:
                results += collect(futures, out / f"{file_name(suite)}.json")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            end_all()
            raise
    return results


def collect(futures, path):
    """The results of a suite's runs, shown as they come, and kept in a file."""
    kept = []
    for future in futures:
        kept.append(future.result())
        reference = page.reference_of(kept[-1], kept)
        show(kept[-1], reference if kept[-1]["mount"] != "ext4" else None)
    path.write_text(json.dumps(kept, indent=1))
    return kept


def main():
    chosen = options()
    if chosen.list:
        for suite in SUITES:
            print(f"{suite.name}: {' '.join('/'.join(run) for run in suite.runs)}")
        return 0
    if os.geteuid() != 0:
        sys.exit("conformance: mounting ext4 and changing users needs root")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    out = target() / "conformance" / ("quick" if chosen.quick else "long")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="c-") as work:
        work = pathlib.Path(work)
        work.chmod(0o755)
        # Ordinary users may not reach the place where it was built.
        source = pathlib.Path(os.environ.get("ESPALIER", target() / "release/espalier"))
        if not source.exists():
            sys.exit(f"conformance: there is no {source}: make builds it, or set ESPALIER")
        program = pathlib.Path(shutil.copy(source, work / "espalier"))
        suites, missing = prepared(chosen, work)
        try:
            results = run_all(suites, chosen, program, out)
        finally:
            end_all()
    wrong = page.judge(results, page.listed(PAGE.read_text()))
    if missing and os.environ.get("CI"):
        wrong += missing
    if chosen.write:
        page.write(PAGE, page.load(out, out.parent / "quick"))
    states = [state for result in results for state in result["cases"].values()]
    for line in wrong:
        print(f"conformance: {line}")
    print(f"conformance: {states.count(PASSED)} cases passed, {states.count(FAILED)} failed here or on "
          f"ext4, {len(missing)} suites skipped; the logs are in {out}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
