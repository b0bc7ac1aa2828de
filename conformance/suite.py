"""A suite: programs of another project that say, case by case, whether a file system is right."""

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"

ROOT, PLAIN = "root", "user"

# Runs are pairs of a mount (place.MOUNTS) and ROOT or PLAIN.
IMAGE = ("image", ROOT)
CLASSIC = ("classic", ROOT)
WRITEBACK = ("writeback", ROOT)
DEVICE = ("device", ROOT)
OBJECT = ("object", ROOT)
ROOTLESS = ("rootless", PLAIN)
ALL = (IMAGE, CLASSIC, WRITEBACK, DEVICE, ROOTLESS)
# Root's mount, where an ordinary user works: for programs that refuse root.
IMAGE_PLAIN = ("image", PLAIN)
CLASSIC_PLAIN = ("classic", PLAIN)
WRITEBACK_PLAIN = ("writeback", PLAIN)
DEVICE_PLAIN = ("device", PLAIN)
# For suites whose data goes through a store and is read again after a remount.
WITH_OBJECT = (*ALL, OBJECT)
ALL_PLAIN = (IMAGE_PLAIN, CLASSIC_PLAIN, WRITEBACK_PLAIN, DEVICE_PLAIN, ROOTLESS)


class Suite:
    """What each suite says of itself. One object serves all runs."""

    # The first column of the table.
    name = ""
    # The runs of `make test-long`, and those of `make test`.
    runs = ALL
    quick = ()
    # Fewer cases than this are a failure: the suite did not do its work.
    least = 1

    def version(self):
        """The version that is tested; raises Missing if a tool is not there."""
        raise NotImplementedError

    def prepare(self, work):
        """Builds what all runs need, in the directory `work`, once."""

    def run(self, place, quick):
        """Runs the suite in place.dir; gives the state of each case by its name.

        `quick` asks for the shorter selection of `make test`. Raises Failure if the suite broke off.
        """
        raise NotImplementedError
