"""A container of an ordinary user (bwrap) whose root is a clone of a Debian tree.

On ext4 the root is a copy. podman is not used: it refuses machines with older control groups.
"""

from process import Failure, debian_version, need
from suite import ALL_PLAIN, FAILED, PASSED, Suite
from tools import tools

CONTAINER = ["bwrap", "--unshare-all", "--uid", "0", "--gid", "0", "--die-with-parent", "--bind",
             "root", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/run", "--setenv", "PATH",
             "/usr/sbin:/usr/bin:/sbin:/bin", "--setenv", "TMPDIR", "/tmp", "--chdir", "/"]
LOOK = "{ find base -printf '%p %y %m %s %n %T@ %l\\n' | sort; find base -type f | sort | xargs -d '\\n' sha256sum; }"
INSIDE = [
    ("root is the root", "test $(id -u) = 0 && test -e /etc/debian_version && test $(stat -c %u /etc) = 0"),
    ("packages are as they were packed", "test -z \"$(dpkg --verify | grep -v ' c /')\""),
    ("programs and libraries", "ldconfig && perl -e 'print 6 * 7' | grep -qx 42 && find /usr -type f | xargs -d '\\n' -n 500 sha256sum >/tmp/sums"),
    ("a package is built and installed",
     "mkdir -p /tmp/p/DEBIAN /tmp/p/opt/p && echo hello >/tmp/p/opt/p/f && printf 'Package: p\\nVersion: 1\\nArchitecture: all\\n"
     "Maintainer: m <m@example.org>\\nDescription: d\\n' >/tmp/p/DEBIAN/control && dpkg-deb -b /tmp/p /tmp/p.deb && "
     "dpkg -i /tmp/p.deb && grep -qx hello /opt/p/f && dpkg -s p | grep -q 'install ok installed'"),
    ("and removed", "dpkg -r p && ! test -e /opt/p/f"),
    ("a user and a group", "groupadd --gid 700 g && echo 'u:x:700:700::/home/u:/bin/sh' >>/etc/passwd && id u | grep -q 700"),
    ("documentation is removed", "rm -r /usr/share/doc /usr/share/locale && ! test -e /usr/share/doc"),
    ("moved, linked, listed", "mv /usr/share /usr/share2 && mv /usr/share2 /usr/share && cp -al /usr/lib /tmp/lib && diff -r --no-dereference /usr/lib /tmp/lib"),
    ("a tree in an archive", "cd /tmp && tar -C /etc -cf - . | tar -xf - -C $(mkdir etc && echo etc) && diff -r --no-dereference /etc etc"),
]


class Container(Suite):
    name = "container"
    runs = ALL_PLAIN
    least = len(INSIDE) + 4

    def version(self):
        need("tar")
        self.archive = tools() / "debian-root.tar"
        need(str(self.archive))
        return f"bwrap {debian_version('bubblewrap')}"

    def prepare(self, work):
        # Where the ordinary user can read it.
        self.copy = work / "root.tar"
        self.copy.write_bytes(self.archive.read_bytes())

    def run(self, place, quick):
        cases = {}

        def step(name, argv):
            status, _ = place.run(argv, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
            cases[name] = PASSED if status == 0 else FAILED

        script = ["bash", "-e", "-o", "pipefail", "-c"]
        step("unpack", [*script, f"mkdir base && tar -C base -xf {self.copy}"])
        if cases["unpack"] == FAILED:
            raise Failure("the tree cannot be unpacked")
        clone = "cp -a base root" if place.mount == "ext4" else f"{place.program} clone base root"
        step("look", [*script, f"{LOOK} >before"])
        step("clone", [*script, clone])
        for name, command in INSIDE:
            step(name, [*CONTAINER, *script, command])
        step("the base is as before", [*script, f"{LOOK} >after && cmp before after"])
        return cases
