"""One of several processes that share a cache: python cache_process.py ROOT LIMIT SEED

Holds files in a random order, and checks each. Writes a line for every download. With SEED "stuck"
it stops in the middle of its first download, and says so.
"""

from __future__ import annotations

import random
import sys
import threading
from functools import partial
from pathlib import Path

from octad.spec.checkpoints import StoredFile
from octad.storage.cache import Cache
from octad.storage.objects import digest_of

CONTENTS = [bytes([number]) * (1000 + number) for number in range(12)]


def file(number: int) -> StoredFile:
    content = CONTENTS[number]
    return StoredFile(path=str(number), size=len(content), digest=digest_of(content))


def main() -> None:
    root, limit, seed = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

    def download(number: int, path: Path) -> None:
        print("download", number, flush=True)
        with path.open("wb") as out:
            out.write(CONTENTS[number][:500])
            if seed == "stuck":
                out.flush()
                print("stuck", flush=True)
                threading.Event().wait()
            out.write(CONTENTS[number][500:])

    draws = random.Random(seed)
    for _ in range(15):
        cache = Cache(root, limit)
        for number in draws.sample(range(len(CONTENTS)), 3):
            place = cache.held / str(number)
            cache.hold(file(number), place, partial(download, number), "here")
            assert place.read_bytes() == CONTENTS[number]
        held = {path.name: path.read_bytes() for path in cache.held.iterdir()}
        assert all(content == CONTENTS[int(name)] for name, content in held.items())
        assert len(held) == 3
        cache.close()


if __name__ == "__main__":
    main()
