"""Places for tests: a directory of a mount, and an image that is not mounted.

The mount is that of $ESPALIER_TEST_MOUNT (scripts/bindings makes one). Tests that need it fail without.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import espalier
import pytest

IMAGE_BYTES = 64 << 20


def new_directory() -> str:
    """A new directory of the mount."""
    assert "ESPALIER_TEST_MOUNT" in os.environ, "ESPALIER_TEST_MOUNT names no mount; use scripts/bindings"
    path = os.path.join(os.environ["ESPALIER_TEST_MOUNT"], secrets.token_hex(6))
    os.mkdir(path)
    return path


@pytest.fixture
def mounted() -> Iterator[str]:
    """A directory of the mount."""
    path = new_directory()
    yield path
    shutil.rmtree(path)


@pytest.fixture
def image(tmp_path: Path) -> str:
    """An image that is not mounted."""
    path = tmp_path / "image"
    espalier.format_image(path, IMAGE_BYTES)
    return str(path)


@pytest.fixture(params=["mounted", "image"])
def place(request: pytest.FixtureRequest) -> str:
    """A place of each kind."""
    return str(request.getfixturevalue(request.param))


@pytest.fixture
def tree(place: str) -> Iterator[espalier.Tree]:
    """An empty tree of each kind."""
    with espalier.Tree(place) as tree:
        yield tree
