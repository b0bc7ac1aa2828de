"""The PyTorch dataset of the examples: with PyTorch where it is, and as a DataLoader would use it."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import espalier
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

import torch_dataset  # noqa: E402

COUNT = 600
START_METHODS = ["fork", "spawn"]


def fill(place: str) -> None:
    with espalier.Tree(place) as tree:
        names = [f"class{n % 3}/{n}.bin" for n in range(COUNT)]
        tree.write_many([(name, name.encode()) for name in names])
        tree.write("other", b"")


@pytest.fixture
def dataset(place: str) -> Iterator[torch_dataset.FileDataset]:
    """A dataset of files that hold their names."""
    fill(place)
    dataset = torch_dataset.FileDataset(place, "*.bin", decode)
    assert len(dataset) == COUNT
    yield dataset
    dataset.tree.close()


def decode(path: str, content: bytes) -> str:
    assert path == content.decode()
    return path


def work(dataset: Any, batches: Any, results: Any) -> None:
    """What a worker of a DataLoader does."""
    for batch in iter(batches.get, None):
        results.put(dataset.__getitems__(batch))


@pytest.mark.parametrize("method", START_METHODS)
def test_workers_read_batches(dataset: torch_dataset.FileDataset, method: str) -> None:
    read_by_workers(dataset, method)


def test_workers_read_batches_on_a_busy_machine(image: str) -> None:
    """Threads of the parent are at any point of what they do when it forks."""
    context = multiprocessing.get_context("fork")
    others = [context.Process(target=spin, daemon=True) for _ in range(2 * (os.cpu_count() or 1))]
    for process in others:
        process.start()
    try:
        fill(image)
        for _ in range(3):
            dataset = torch_dataset.FileDataset(image, "*.bin", decode)
            read_by_workers(dataset, "fork")
            dataset.tree.close()
    finally:
        for process in others:
            process.kill()


def spin() -> None:
    while True:
        pass


def read_by_workers(dataset: torch_dataset.FileDataset, method: str) -> None:
    assert dataset[7] == dataset.paths[7] and dataset[[5, 1]] == [dataset.paths[5], dataset.paths[1]]
    context = multiprocessing.get_context(method)
    batches, results = context.Queue(), context.Queue()
    workers = [context.Process(target=work, args=(dataset, batches, results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    order = random.Random(1).sample(range(COUNT), COUNT)
    chunks = [order[at : at + 64] for at in range(0, COUNT, 64)]
    for chunk in chunks:
        batches.put(chunk)
    read = [results.get() for _ in chunks]
    for _ in workers:
        batches.put(None)
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert sorted(name for batch in read for name in batch) == sorted(dataset.paths)
    assert {tuple(batch) for batch in read} == {tuple(dataset.paths[at] for at in chunk) for chunk in chunks}


if importlib.util.find_spec("torch"):

    @pytest.mark.parametrize("method", START_METHODS)
    def test_a_data_loader_reads_all_files(dataset: torch_dataset.FileDataset, method: str) -> None:
        from torch.utils.data import BatchSampler, DataLoader, RandomSampler

        batches = BatchSampler(RandomSampler(dataset), batch_size=64, drop_last=False)
        loader = DataLoader(
            dataset, sampler=batches, batch_size=None, num_workers=2, multiprocessing_context=method
        )
        assert sorted(name for batch in loader for name in batch) == sorted(dataset.paths)
        loader = DataLoader(dataset, batch_size=64, shuffle=True, num_workers=1, multiprocessing_context=method)
        assert sorted(name for batch in loader for name in batch) == sorted(dataset.paths)
