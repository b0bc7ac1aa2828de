"""git: a repository is made, cloned, packed again, collected and checked, step by step."""

import random

from process import debian_version
from suite import FAILED, IMAGE, PASSED, WITH_OBJECT, WRITEBACK, Suite

STEPS = [
    ("init", "git init -q -b main source && git -C source config gc.auto 0"),
    ("import a history", "git -C source fast-import --quiet --done <$HISTORY && git -C source reset -q --hard main"),
    ("status is clean", 'test -z "$(git -C source status --porcelain)"'),
    ("clone", "git clone -q --no-local source copy"),
    ("clone with hard links", "git clone -q source linked && test $(git -C linked rev-parse HEAD) = $(git -C source rev-parse HEAD)"),
    ("same files", "diff -r --exclude=.git source copy"),
    ("worktree", "git -C copy worktree add -q ../tree main~20 && test -z \"$(git -C tree status --porcelain)\""),
    ("switch back and forth", "cd tree && for n in 1 2 3 4 5; do git checkout -q main~$((n * 7)) && git checkout -q main~20; done"),
    ("change and commit", "cd copy && for n in $(seq 40); do echo $n >>file-$n && git add -A && git commit -q -m $n; done"),
    ("stash, rebase", "cd copy && echo x >>file-1 && git stash -q && git rebase -q --onto main~10 main~5 && git stash pop -q"),
    ("fetch into the source", "git -C source fetch -q ../copy HEAD:back && test -n \"$(git -C source log -1 --format=%H back)\""),
    ("repack", "git -C copy repack -q -a -d -f --depth=20 --window=5"),
    ("gc", "git -C copy gc -q --prune=now"),
    ("gc of the source", "git -C source gc -q --aggressive --prune=now"),
    ("bundle", "git -C source bundle create -q ../all.bundle --all && git -C source bundle verify -q ../all.bundle"),
    ("archive", "git -C copy archive HEAD | tar -x -C $(mkdir archive && echo archive) && test -e archive/file-1"),
]
CHECKS = [(f"fsck --strict of {name}", f"git -C {name} fsck --strict --no-progress") for name in ("source", "copy", "linked")]
CHECKS.append(("status of the source", 'test -z "$(git -C source status --porcelain)"'))


def history(commits, seed=1):
    """A history for git fast-import: each commit changes some files."""
    rng = random.Random(seed)
    lines = []
    for number in range(commits):
        message = f"commit {number}\n"
        lines.append(f"commit refs/heads/main\ncommitter a <a@example.org> {1600000000 + number * 60} +0000\n"
                     f"data {len(message)}\n{message}")
        for _ in range(8):
            path = f"d{rng.randrange(12)}/e{rng.randrange(12)}/f{rng.randrange(30)}"
            content = "".join(f"{rng.randrange(1 << 30)}\n" for _ in range(rng.randrange(1, 400)))
            lines.append(f"M 100644 inline {path}\ndata {len(content)}\n{content}")
    lines.append("done\n")
    return "\n".join(lines)


class Git(Suite):
    name = "git"
    runs = WITH_OBJECT
    quick = (IMAGE, WRITEBACK)
    least = len(STEPS) + 2 * len(CHECKS)

    def version(self):
        return debian_version("git")

    def prepare(self, work):
        self.history = work / "history"
        self.history.write_text(history(300))

    def run(self, place, quick):
        cases = {}
        environment = {
            "HISTORY": self.history, "GIT_CONFIG_NOSYSTEM": 1, "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org",
            "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.org",
        }

        def step(name, script):
            status, _ = place.run(["bash", "-e", "-o", "pipefail", "-c", script], env=environment)
            cases[name] = PASSED if status == 0 else FAILED

        for name, script in STEPS + CHECKS:
            step(name, script)
        place.remount()
        for name, script in CHECKS:
            step(f"{name}, after a remount", script)
        return cases
