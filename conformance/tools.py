"""Where scripts/install-deps puts what is not a Debian package."""

import os
import pathlib
import re

from process import need


def tools():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.environ["HOME"], ".cache")
    return pathlib.Path(os.environ.get("ESPALIER_TOOLS") or os.path.join(base, "espalier/tools"))


def cargo_tool(name):
    """The program of a crate."""
    path = tools() / "bin" / name
    need(str(path))
    return path


def cargo_version(name):
    """The version of an installed crate, from the stamp that the installation leaves."""
    cargo_tool(name)
    stamps = [path.name for path in tools().glob(f".{name}-*")]
    versions = [re.fullmatch(rf"\.{name}-([0-9.]+)", stamp) for stamp in stamps]
    return max((match[1] for match in versions if match), key=lambda v: [int(n) for n in v.split(".")])


def source(package):
    """The unpacked Debian source package."""
    path = tools() / "sources" / package
    need(str(path))
    return path


def source_version(package):
    return (source(package) / ".version").read_text().strip()
