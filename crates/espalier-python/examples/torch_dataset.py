"""Trains on many small files of an Espalier file system: a PyTorch dataset that reads whole batches.

usage: torch_dataset.py PLACE [PATTERN]

PLACE is a directory in a mount, an image that is not mounted, or IMAGE:/DIRECTORY. A batch is one
call past the kernel, in whatever order the sampler asks for; the files are read in the order in which
they lie. Each worker of a DataLoader has a connection of its own, however it was started.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Optional, Union

import espalier

try:
    from torch.utils.data import Dataset
except ImportError:  # The class works without: it has all that a DataLoader asks for.
    Dataset = object  # type: ignore[misc, assignment]


class FileDataset(Dataset):  # type: ignore[misc]
    """The files below a directory, each as `decode(path, content)`.

    `dataset[3]` is one file, `dataset[[5, 1, 3]]` several with one call. A DataLoader asks for whole
    batches by `__getitems__` (PyTorch 2.0 and later); for any version, have the sampler give batches:
    `DataLoader(dataset, sampler=BatchSampler(...), batch_size=None)`.
    """

    def __init__(
        self,
        place: str,
        pattern: str = "*",
        decode: Callable[[str, bytes], Any] = lambda path, content: content,
        **options: Any,
    ) -> None:
        self.decode = decode
        # It is opened anew in each worker: by fork with the first call, by spawn with the pickle.
        self.tree = espalier.Tree(place, read_only=True, **options)
        self.paths = [entry.path for entry in self.tree.walk(pattern=pattern, kinds=["file"])]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Union[int, Sequence[int]]) -> Any:
        if isinstance(index, int):
            return self.__getitems__([index])[0]
        return self.__getitems__(index)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        paths = [self.paths[index] for index in indices]
        return [self.decode(path, content) for path, content in zip(paths, self.tree.read_many(paths))]


def main(place: str, pattern: str = "*") -> Optional[int]:
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler

    dataset = FileDataset(place, pattern)
    batches = BatchSampler(RandomSampler(dataset), batch_size=256, drop_last=False)
    loader = DataLoader(dataset, sampler=batches, batch_size=None, num_workers=2)
    total = sum(len(content) for batch in loader for content in batch)
    print(f"{len(dataset)} files, {total} bytes, in batches of 256")
    return None


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: torch_dataset.py PLACE [PATTERN]")
    sys.exit(main(*sys.argv[1:]))
