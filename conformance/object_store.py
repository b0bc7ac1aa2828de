"""File systems in real object stores, on servers of other people that this program starts.

On versitygw and moto: a tree, deaths of the writer, a check after each, a second machine that takes
over (on versitygw in a network namespace), each with a disk cache of its own, and writers of both that
begin at the same time. On versitygw also deaths of writers at work on both machines in turn, ten
readers that follow a writer, a server that is away while callers wait or get errors, a journal, fsx, and
pjdfstest beside an image. On azurite, which speaks Azure's language, a tree, deaths, and writers that
begin at the same time. In a directory ten readers follow a writer, too. s3s-fs loses races of
conditional puts: it has to be refused, for a new store and for one that another server made.
$ESPALIER names the program. Needs root, and what `scripts/install-deps objects` installs.
"""

import argparse
import base64
import contextlib
import email.utils
import errno
import hashlib
import hmac
import json
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from process import Failure, check, run
from suites.fsx import CONFIGURATION as FSX_CONFIGURATION
from suites.pjdfstest import CONFIGURATION as PJDFSTEST_CONFIGURATION, cases_of
from tools import cargo_tool, tools

KEY, SECRET, REGION, BUCKET = "espalier", "espaliersecret", "us-east-1", "bucket"
# The account of Azure's emulators; everybody has its key.
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
CREDENTIALS = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": REGION,
               "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY}
# A server that has not begun by then does not begin.
START_LIMIT = 60
DEATHS = 5
FSX_OPERATIONS = 3000
# Writers that are killed at work, and files that each of them makes durable before.
KILLED_WRITERS, SYNCED_FILES = 8, range(3, 12)
READERS, FOLLOWED_FILES = 10, 60
# Pairs of writers that begin at the same time.
RACES = 8
# A reader that is not there by then does not follow.
FOLLOW_LIMIT = 120


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A server with one bucket; what it stores stays when it is stopped and started again."""

    def __init__(self, base, host="127.0.0.1"):
        self.base, self.host, self.port = base / self.name, host, free_port()
        self.base.mkdir()
        self.child = None

    @property
    def endpoint(self):
        return f"http://{self.host}:{self.port}"

    def url(self, prefix):
        return f"s3://{BUCKET}/{prefix}?endpoint={self.endpoint}"

    def start(self):
        with open(self.base.with_suffix(".log"), "ab") as log:
            self.child = subprocess.Popen(
                [str(word) for word in self.argv()], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **self.environment()}, process_group=0)
        end = time.monotonic() + START_LIMIT
        while True:
            try:
                socket.create_connection((self.host, self.port), 1).close()
                return
            except OSError as error:
                if self.child.poll() is not None or time.monotonic() > end:
                    said = self.base.with_suffix(".log").read_text(errors="replace")
                    raise Failure(f"{self.name} did not start: {said[-2000:]}") from error
                time.sleep(0.05)

    def stop(self):
        if self.child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()
            self.child = None

    def environment(self):
        return {}

    def make_bucket(self):
        (self.base / BUCKET).mkdir()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()


class Versitygw(Server):
    name = "versitygw"

    def argv(self):
        return [tools() / "bin/versitygw", "--port", f"{self.host}:{self.port}", "--region", REGION, "--quiet",
                "posix", self.base]

    def environment(self):
        return {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}


class Moto(Server):
    name = "moto"

    def argv(self):
        return [tools() / "moto/bin/moto_server", "-H", self.host, "-p", self.port]

    def make_bucket(self):
        put = urllib.request.Request(f"{self.endpoint}/{BUCKET}", method="PUT")
        urllib.request.urlopen(put, timeout=20).close()


class S3sFs(Server):
    name = "s3s-fs"

    def argv(self):
        return [tools() / "bin/s3s-fs", "--host", self.host, "--port", self.port, "--access-key", KEY,
                "--secret-key", SECRET, self.base]


class Azurite(Server):
    name = "azurite"

    @property
    def endpoint(self):
        return f"http://{self.host}:{self.port}/{ACCOUNT}"

    def url(self, prefix):
        return f"az://{BUCKET}/{prefix}?account={ACCOUNT}&endpoint={self.endpoint}"

    def argv(self):
        return ["node", tools() / "azurite/node_modules/azurite/dist/src/blob/main.js", "--blobHost", self.host,
                "--blobPort", self.port, "--location", self.base, "--silent", "--disableTelemetry",
                "--skipApiVersionCheck"]

    def make_bucket(self):
        headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2023-11-03"}
        named = "".join(f"{name}:{value}\n" for name, value in headers.items())
        signed = f"PUT{12 * chr(10)}{named}/{ACCOUNT}/{ACCOUNT}/{BUCKET}\nrestype:container"
        digest = hmac.new(base64.b64decode(ACCOUNT_KEY), signed.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        put = urllib.request.Request(f"{self.endpoint}/{BUCKET}?restype=container", method="PUT", headers=headers)
        urllib.request.urlopen(put, timeout=20).close()


class Machine:
    """Where a file system is mounted; with `namespace` behind a network of its own."""

    def __init__(self, program, base, name, namespace=None):
        self.program, self.base = program, base / name
        self.dir = self.base / "mnt"
        self.dir.mkdir(parents=True)
        self.enter = ["nsenter", f"--net=/var/run/netns/{namespace}"] if namespace else []

    def run(self, *words, limit=300):
        return run([*self.enter, self.program, *words], env={**CREDENTIALS, "HOME": str(self.base)}, limit=limit)

    def espalier(self, *words):
        status, text = self.run(*words)
        if status != 0:
            raise Failure(f"espalier {' '.join(map(str, words))}: exit status {status}\n{text[-3000:]}")
        return text

    def refused(self, *words, because):
        status, text = self.run(*words)
        if status == 0 or because not in text:
            raise Failure(f"espalier {' '.join(map(str, words))} was not refused: {status}\n{text[-3000:]}")

    def mount(self, url, *options):
        self.espalier("mount", *options, "-o", f"logfile={self.base}/server.log", url, self.dir)

    def umount(self):
        self.espalier("umount", self.dir)

    def kill(self):
        """Kills the server, and takes the mount away that it leaves."""
        told = json.loads(self.espalier("info", "--json", self.dir))
        server = os.pidfd_open(told["mount"]["pid"])
        signal.pidfd_send_signal(server, signal.SIGKILL)
        select.select([server], [], [])
        os.close(server)
        check(["umount", "-l", self.dir])

    def clean_up(self):
        if os.path.ismount(self.dir) or is_dead(self.dir):
            run(["umount", "-l", self.dir], limit=60)


def is_dead(path):
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def write_synced(path, data):
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def content(number):
    return bytes([number % 251]) * (50_000 + 1000 * number)


def expect(holds, what):
    if not holds:
        raise Failure(what)


def sound(machine, url):
    expect("clean" in machine.espalier("fsck", url), "fsck does not say clean")
    machine.espalier("objects", "--check", url)


def tree_and_deaths(machine, url):
    """A tree comes back as it was, and what was synced survives each death of the writer."""
    machine.espalier("mkfs", "--size", "4G", url)
    machine.mount(url)
    source = pathlib.Path(__file__).parent
    check(["cp", "-a", source, machine.dir / "tree"])
    machine.umount()
    machine.mount(url)
    check(["diff", "-r", source, machine.dir / "tree"])
    for number in range(DEATHS):
        for before in range(number):
            found = (machine.dir / f"synced{before}").read_bytes()
            expect(found == content(before), f"synced{before} is not what was synced")
        write_synced(machine.dir / f"synced{number}", content(number))
        (machine.dir / "not synced").write_bytes(content(99))
        machine.kill()
        sound(machine, url)
        if number == 0:
            machine.refused("mount", url, machine.dir, because="has it open for writing")
        machine.mount(url, "--take-over")
    machine.umount()
    sound(machine, url)


def second_machine(first, second, url):
    """A machine with a network and a cache of its own takes over; the first one fails, and says why."""
    first.espalier("mkfs", "--size", "4G", url)
    first.mount(url, "-o", f"disk_cache={first.base}/cache,disk_cache_size=64M")
    write_synced(first.dir / "first", content(1))
    # In other namespaces of the network, but of one machine as to mounts: the second has another name for it.
    second.refused("mount", url + "&region=" + REGION, second.dir, because="has it open for writing")
    second.mount(url + "&region=" + REGION, "--take-over", "-o",
                 f"disk_cache={second.base}/cache,disk_cache_size=64M")
    expect((second.dir / "first").read_bytes() == content(1), "the first file is not there")
    write_synced(second.dir / "second", content(2))
    try:
        write_synced(first.dir / "lost", content(3))
        raise Failure("a mount that was taken over made something durable")
    except OSError:
        pass
    expect("took the store over" in (first.base / "server.log").read_text(), "the log does not say why")
    first.run("umount", first.dir)
    second.kill()
    first.mount(url, "--take-over", "-o", f"disk_cache={first.base}/cache,disk_cache_size=64M")
    expect((first.dir / "second").read_bytes() == content(2), "the second file is not there")
    first.umount()
    sound(first, url)


class Load(threading.Thread):
    """Writes files one after the other, and syncs each, until that fails."""

    def __init__(self, directory, name):
        super().__init__()
        self.directory, self.name = directory, name
        self.synced, self.changed = 0, threading.Condition()

    def run(self):
        try:
            for number in range(1_000_000):
                write_synced(self.directory / f"{self.name}-{number}", content(number % 40))
                with self.changed:
                    self.synced = number + 1
                    self.changed.notify_all()
        except OSError:
            # It was killed.
            pass

    def wait_for(self, number):
        with self.changed:
            expect(self.changed.wait_for(lambda: self.synced >= number, timeout=120),
                   f"{self.name}: {self.synced} files were synced, not {number}")


def deaths_at_work(machines, urls):
    """Writers on two machines are killed while they write, and the other one goes on each time."""
    machines[0].espalier("mkfs", "--size", "4G", urls[0])
    written = {}
    for number in range(KILLED_WRITERS):
        machine, url = machines[number % 2], urls[number % 2]
        machine.mount(url, "--take-over", "-o", f"disk_cache={machine.base}/cache,disk_cache_size=64M")
        for name, count in written.items():
            for each in range(count):
                found = (machine.dir / f"{name}-{each}").read_bytes()
                expect(found == content(each % 40), f"{name}-{each} is not what was synced")
        load = Load(machine.dir, f"writer{number}")
        load.start()
        load.wait_for(SYNCED_FILES[number % len(SYNCED_FILES)])
        machine.kill()
        load.join(timeout=60)
        written[load.name] = load.synced
        sound(machine, url)
    expect(len(written) == KILLED_WRITERS and min(written.values()) > 0, f"writers did nothing: {written}")


def at_once(bodies):
    """Runs functions at the same time; gives what they return, or None for those that fail."""
    found, begin = [None] * len(bodies), threading.Barrier(len(bodies))

    def one(number, body):
        begin.wait()
        with contextlib.suppress(Failure, OSError):
            found[number] = body()

    threads = [threading.Thread(target=one, args=each) for each in enumerate(bodies)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def races(machines, urls):
    """Writers begin from one root at the same time: one of them wins, and no sync is lost."""
    machines[0].espalier("mkfs", "--size", "4G", urls[0])
    synced = []
    for number in range(RACES):
        # Without being told to take over, the slower one is refused.
        take_over = ["--take-over"] if number % 2 else []

        def writer(each, number=number, take_over=take_over):
            machines[each].mount(urls[each], *take_over)
            write_synced(machines[each].dir / f"race{number}-{each}", content(number))
            return f"race{number}-{each}", number

        won = [each for each in at_once([lambda each=each: writer(each) for each in range(2)]) if each]
        expect(won if take_over else len(won) == 1, f"race {number} was won by {won}")
        synced += won
        for machine in machines:
            # One that was taken over says so, and ends.
            machine.run("umount", machine.dir)
            machine.clean_up()
        sound(machines[0], urls[0])
    machines[1].mount(urls[1], "--take-over")
    for name, number in synced:
        expect((machines[1].dir / name).read_bytes() == content(number), f"{name} is not what was synced")
    machines[1].umount()


def followers(writer, readers, url, urls):
    """Many machines follow a writer; each sees whole files, in the order in which they were synced.

    Each reader has the store by another name, as on a machine of its own.
    """
    writer.espalier("mkfs", "--size", "4G", url)
    writer.mount(url)
    write_synced(writer.dir / "newest", b"0")
    failed = []

    def follow(machine):
        try:
            newest, end = 0, time.monotonic() + FOLLOW_LIMIT
            while newest < FOLLOWED_FILES:
                expect(time.monotonic() < end, f"it is at file {newest} of {FOLLOWED_FILES}")
                found = int((machine.dir / "newest").read_bytes())
                expect(found >= newest, f"{found} came after {newest}")
                newest = found
                for number in range(1, newest + 1, 7):
                    data = (machine.dir / f"file{number}").read_bytes()
                    expect(data == content(number), f"file{number} is not whole")
                time.sleep(0.1)
        except (Failure, OSError, ValueError) as error:
            failed.append(f"{machine.base.name}: {error}")

    for machine, name in zip(readers, urls, strict=True):
        machine.mount(name, "-o", f"ro,follow,disk_cache={machine.base}/cache")
    threads = [threading.Thread(target=follow, args=(machine,)) for machine in readers]
    for thread in threads:
        thread.start()
    for number in range(1, FOLLOWED_FILES + 1):
        write_synced(writer.dir / f"file{number}", content(number))
        write_synced(writer.dir / "next", str(number).encode())
        os.rename(writer.dir / "next", writer.dir / "newest")
        directory = os.open(writer.dir, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
    for thread in threads:
        thread.join()
    expect(not failed, f"{len(failed)} of {len(readers)} readers: {failed[:3]}")
    for machine in readers:
        machine.umount()
    writer.umount()
    sound(writer, url)


def away(machine, server, url):
    """The server is away: callers wait, may be killed, and go on when it is there again."""
    machine.espalier("mkfs", "--size", "4G", url)
    machine.mount(url, "-o", "offline=wait")
    write_synced(machine.dir / "before", content(1))
    server.stop()
    synced = threading.Event()

    def sync():
        write_synced(machine.dir / "during", content(2))
        synced.set()

    waiting = threading.Thread(target=sync)
    waiting.start()
    # One that waits can be killed.
    script = "import os, sys; f = open(sys.argv[1], 'wb'); f.write(b'x'); print('.', flush=True); os.fsync(f)"
    victim = subprocess.Popen([sys.executable, "-c", script, str(machine.dir / "victim")], stdout=subprocess.PIPE)
    victim.stdout.read(1)
    victim.kill()
    victim.wait(timeout=60)
    expect(not synced.is_set(), "a sync returned while the server was away")
    server.start()
    waiting.join(timeout=120)
    expect(synced.is_set(), "the sync did not return when the server was there again")
    machine.umount()
    machine.mount(url)
    expect((machine.dir / "during").read_bytes() == content(2), "what was synced is not there")
    machine.umount()
    sound(machine, url)


def away_with_errors(machine, server, url):
    """The server is away, and `offline=eio` asks for errors: no sync says yes, and nothing older is lost."""
    machine.espalier("mkfs", "--size", "4G", url)
    machine.mount(url, "-o", "offline=eio")
    write_synced(machine.dir / "before", content(1))
    server.stop()
    try:
        write_synced(machine.dir / "during", content(2))
        raise Failure("a sync returned while the server was away")
    except OSError as error:
        expect(error.errno in (errno.EIO, errno.EROFS), f"it failed with {error}")
    machine.kill()
    server.start()
    machine.mount(url, "--take-over")
    expect((machine.dir / "before").read_bytes() == content(1), "what was synced is not there")
    machine.umount()
    sound(machine, url)


def journal(machine, server, url):
    """With a journal, syncs return while the server is away, and survive the death of the mount."""
    options = ("-o", f"journal={machine.base}/journal,journal_size=64M")
    machine.espalier("mkfs", "--size", "4G", url)
    machine.mount(url, *options)
    server.stop()
    for number in range(5):
        write_synced(machine.dir / f"synced{number}", content(number))
    machine.kill()
    server.start()
    machine.refused("mount", url, machine.dir, because="for writing")
    machine.mount(url, *options)
    for number in range(5):
        expect((machine.dir / f"synced{number}").read_bytes() == content(number), f"synced{number} is lost")
    machine.umount()
    sound(machine, url)


def suites(machine, url, base):
    """fsx, and pjdfstest with the results that it has on an image."""
    machine.espalier("mkfs", "--size", "8G", url)
    image, beside = base / "image", Machine(machine.program, base, "beside")
    beside.espalier("mkfs", "--size", "2G", image)
    results = []
    for each, source in ((machine, url), (beside, image)):
        each.mount(source)
        try:
            directory = each.dir / "t"
            directory.mkdir()
            directory.chmod(0o777)
            if each is machine:
                check([cargo_tool("fsx"), "-f", FSX_CONFIGURATION, "-N", FSX_OPERATIONS, "-S", 1, "-P", base,
                       directory / "file"], limit=300)
            argv = [cargo_tool("pjdfstest"), "-c", PJDFSTEST_CONFIGURATION, "-p", directory]
            results.append(cases_of(run(argv, env={"NO_COLOR": "1"}, limit=600)[1]))
        finally:
            each.espalier("umount", each.dir)
    expect(len(results[0]) > 380, f"pjdfstest has {len(results[0])} results only")
    differing = {name for name in results[0] if results[0][name] != results[1].get(name)}
    expect(not differing, f"pjdfstest says something else than on an image: {sorted(differing)}")
    sound(machine, url)


def refused_for_races(machine, url):
    """A server that takes two puts of which one should have been refused gets no store."""
    machine.refused("mkfs", "--size", "1G", url, because="does not honour the condition")


def refused_to_writers(machine, url, folder):
    """The objects of a good store, on such a server: it is read, and never written."""
    made = f"file://{machine.base}/made"
    machine.espalier("mkfs", "--size", "1G", made)
    machine.mount(made)
    write_synced(machine.dir / "file", content(1))
    machine.umount()
    shutil.copytree(machine.base / "made", folder)
    for options in ([], ["--take-over"]):
        machine.refused("mount", *options, url, machine.dir, because="does not honour the condition")
    machine.mount(url, "-o", "ro")
    expect((machine.dir / "file").read_bytes() == content(1), "the file is not what was synced")
    machine.umount()


@contextlib.contextmanager
def namespace(host, guest):
    """A network of its own, which reaches this one's address `host` from `guest`."""
    name, outer, inner = (f"{what}{os.getpid()}" for what in ("esp", "eso", "esi"))
    check(["ip", "netns", "add", name])
    try:
        check(["ip", "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", name])
        check(["ip", "address", "add", f"{host}/30", "dev", outer])
        check(["ip", "link", "set", outer, "up"])
        check(["ip", "-n", name, "address", "add", f"{guest}/30", "dev", inner])
        check(["ip", "-n", name, "link", "set", inner, "up"])
        yield name
    finally:
        run(["ip", "link", "del", outer])
        run(["ip", "netns", "del", name])


def on_versitygw(program, base, step):
    host, guest = "169.254.203.1", "169.254.203.2"
    with namespace(host, guest) as other, Versitygw(base, host) as server:
        server.make_bucket()
        first, second = Machine(program, base, "first"), Machine(program, base, "second", other)
        try:
            step("versitygw: a tree, deaths", tree_and_deaths, first, server.url("deaths"))
            step("versitygw: a second machine", second_machine, first, second, server.url("second"))
            urls = server.url("at-work"), server.url("at-work") + "&region=" + REGION
            step("versitygw: deaths at work", deaths_at_work, (first, second), urls)
            urls = server.url("races"), server.url("races") + "&region=" + REGION
            step("versitygw: races", races, (first, second), urls)
            step("versitygw: away", away, first, server, server.url("away"))
            step("versitygw: away, errors", away_with_errors, first, server, server.url("errors"))
            step("versitygw: journal", journal, first, server, server.url("journal"))
            step("versitygw: fsx, pjdfstest", suites, first, server.url("suites"), base)
        finally:
            for machine in (first, second):
                machine.clean_up()
    followed = base / "followed"
    followed.mkdir()
    with Versitygw(followed, "localhost") as server:
        server.make_bucket()
        writer = Machine(program, followed, "writer")
        readers = [Machine(program, followed, f"reader{number}") for number in range(READERS)]
        try:
            url = server.url("followed")
            # A name of the host has as many names as there are ways to write it.
            names = [url.replace("localhost", "".join(
                letter.upper() if number >> place & 1 else letter for place, letter in enumerate("localhost")))
                for number in range(1, READERS + 1)]
            step("versitygw: ten readers follow", followers, writer, readers, url, names)
        finally:
            for machine in (writer, *readers):
                machine.clean_up()


def on_moto(program, base, step):
    with Moto(base) as server:
        server.make_bucket()
        first, second = (Machine(program, base, f"moto-{name}") for name in ("first", "second"))
        try:
            step("moto: a tree, deaths", tree_and_deaths, first, server.url("deaths"))
            step("moto: a second machine", second_machine, first, second, server.url("second"))
            urls = server.url("races"), server.url("races").replace(server.host, "localhost")
            step("moto: races", races, (first, second), urls)
        finally:
            for machine in (first, second):
                machine.clean_up()


def on_azurite(program, base, step):
    with Azurite(base) as server:
        server.make_bucket()
        first, second = (Machine(program, base, f"azure-{name}") for name in ("first", "second"))
        try:
            step("azurite: a tree, deaths", tree_and_deaths, first, server.url("deaths"))
            urls = server.url("races"), server.url("races").replace(server.host, "localhost")
            step("azurite: races", races, (first, second), urls)
        finally:
            for machine in (first, second):
                machine.clean_up()


def on_directory(program, base, step):
    store = base / "objects"
    writer = Machine(program, base, "writer")
    readers = [Machine(program, base, f"reader{number}") for number in range(READERS)]
    try:
        names = [machine.base / "store" for machine in readers]
        for name in names:
            name.symlink_to(store)
        urls = [f"file://{name}" for name in names]
        step("directory: ten readers follow", followers, writer, readers, f"file://{store}", urls)
    finally:
        for machine in (writer, *readers):
            machine.clean_up()


def on_s3s_fs(program, base, step):
    with S3sFs(base) as server:
        server.make_bucket()
        machine = Machine(program, base, "with-s3s")
        try:
            step("s3s-fs: refused", refused_for_races, machine, server.url("refused"))
            folder = server.base / BUCKET / "copied"
            step("s3s-fs: not written", refused_to_writers, machine, server.url("copied"), folder)
        finally:
            machine.clean_up()


def main():
    parser = argparse.ArgumentParser(prog="scripts/object-store", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    servers = {"versitygw": on_versitygw, "moto": on_moto, "azurite": on_azurite, "directory": on_directory,
               "s3s-fs": on_s3s_fs}
    parser.add_argument("server", nargs="*", choices=[*servers, []], help="only these (default: all)")
    chosen = parser.parse_args().server or list(servers)
    program = os.path.abspath(os.environ.get("ESPALIER") or "target/release/espalier")
    base = pathlib.Path(tempfile.mkdtemp(prefix="espalier-objects-"))
    base.chmod(0o755)
    failed = []

    def step(name, body, *arguments):
        begin = time.monotonic()
        try:
            body(*arguments)
            print(f"{name}: ok, {time.monotonic() - begin:.0f} s", flush=True)
        except (Failure, OSError, subprocess.SubprocessError) as error:
            failed.append(name)
            print(f"{name}: FAILED: {error}", flush=True)

    try:
        for name in chosen:
            servers[name](program, base, step)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    print(f"{len(failed)} failed" if failed else "all is well")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
