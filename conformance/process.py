"""Processes that end: each has a limit of time and a group of its own, and goes with its group."""

import atexit
import os
import shutil
import signal
import subprocess
import threading

# The ordinary user of the suites: every Debian system has it.
USER = "daemon"
# What may still run when everything is to end.
CLEANING = {"umount", "losetup"}
# A process that ran out of time has this exit status, as with timeout(1).
OUT_OF_TIME = 124

_running = set()
_lock = threading.Lock()
# Set when nothing new is to begin.
_stopping = threading.Event()


class Failure(Exception):
    """A step that a suite cannot do without did not succeed; the text says which, and how."""


class Missing(Exception):
    """A tool is not installed; the text says which."""


def need(*tools):
    """Raises Missing unless each of `tools` is a program of the search path or an existing file."""
    for tool in tools:
        if shutil.which(tool) is None and not os.path.exists(tool):
            raise Missing(f"{tool} is missing: run scripts/install-deps suites suites-long")


def as_user(user, cwd, argv):
    """The command `argv` as `user` runs it in the directory `cwd`."""
    drop = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--inh-caps=-all"]
    # Root may not enter what a user has mounted: the user does.
    enter = [] if cwd is None else ["env", f"--chdir={cwd}"]
    return ([] if user == "root" else drop) + enter + list(argv)


def run(argv, *, user="root", cwd=None, env=None, limit=600, log=None):
    """Runs a command to its end, at most `limit` seconds; gives its exit status and what it said.

    Standard output and errors are one text, which is appended to the file `log` if there is one.
    """
    if _stopping.is_set() and argv[0] not in CLEANING:
        raise Failure("everything is to end")
    argv = as_user(user, cwd, [str(word) for word in argv])
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", **(env or {})}
    child = subprocess.Popen(
        argv, env={k: str(v) for k, v in environment.items()}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=0)
    with _lock:
        _running.add(child)
    try:
        said = child.communicate(timeout=limit)[0]
        status = child.returncode
    except subprocess.TimeoutExpired:
        end(child)
        said, status = child.communicate()[0], OUT_OF_TIME
    finally:
        end(child)
        with _lock:
            _running.discard(child)
    text = said.decode(errors="replace")
    if log is not None:
        with open(log, "a") as file:
            file.write(f"$ {' '.join(argv)}\n{text}[exit status {status}]\n")
    return status, text


def check(argv, **options):
    """Runs a command that must succeed; gives what it said, or raises Failure."""
    status, text = run(argv, **options)
    if status != 0:
        raise Failure(f"{' '.join(map(str, argv))}: exit status {status}\n{text[-4000:]}")
    return text


def end(child):
    """Ends a process and its group."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def end_all():
    """Ends every process; only cleaning goes on."""
    _stopping.set()
    with _lock:
        for child in list(_running):
            end(child)


atexit.register(end_all)


def debian_version(package):
    """The version of an installed Debian package; raises Missing if it is not there."""
    status, text = run(["dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", package])
    words = text.split()
    if status != 0 or words[:1] != ["installed"]:
        raise Missing(f"the package {package} is missing: run scripts/install-deps suites suites-long")
    return words[1]
