"""A Dask scheduler and its workers for test_cluster.py. Prints the scheduler's address; ends at the end of its input.

Arguments: the number of workers; "without" for a scheduler that cannot import cudnnpy.

Each worker is a process, and another one is started when it ends, as a nanny does. A nanny gives up if a worker ends
while it starts, which happens to these on a machine under load.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading

from distributed import Scheduler, Worker


async def work(address: str) -> None:
    """Be a worker until the scheduler is lost."""
    async with Worker(address, nthreads=2, host="127.0.0.1", dashboard=False) as worker:
        await worker.finished()


def follow() -> None:
    """End this process, whatever its threads do, at the end of its input."""
    sys.stdin.read()
    os._exit(0)


def keep_a_worker(address: str, never_written: int) -> None:
    """Start a worker, and another one when it has ended, until this process ends."""
    while True:
        subprocess.run([sys.executable, __file__, "worker", address], stdin=never_written, check=False)


async def schedule(workers: int) -> None:
    """Be a scheduler with so many workers."""
    never_written, _ = os.pipe()  # it is closed when this process has ended
    async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
        for _ in range(workers):
            threading.Thread(target=keep_a_worker, args=(scheduler.address, never_written), daemon=True).start()
        print(scheduler.address, flush=True)
        await scheduler.finished()


if __name__ == "__main__":
    threading.Thread(target=follow, daemon=True).start()
    if sys.argv[1] == "worker":
        if "CUDNNPY_TEST_CLUSTER_WORK" in os.environ:
            import cluster_work

            cluster_work.install(os.environ[cluster_work.VARIABLE])
        asyncio.run(work(sys.argv[2]))
        sys.exit()
    if sys.argv[2:] == ["without"]:
        sys.modules["cudnnpy"] = None  # type: ignore[assignment]
    asyncio.run(schedule(int(sys.argv[1])))
