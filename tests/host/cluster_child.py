"""A LocalCluster of processes for test_cluster.py. Prints the scheduler's address, and ends at the end of its input.

Arguments: the number of workers; "without" for a scheduler that cannot import cudnnpy.
"""

from __future__ import annotations

import sys
import time

from distributed import LocalCluster

if __name__ == "__main__":
    if sys.argv[2:] == ["without"]:
        sys.modules["cudnnpy"] = None  # type: ignore[assignment]
    with LocalCluster(
        n_workers=int(sys.argv[1]), threads_per_worker=2, processes=True, dashboard_address=None, host="127.0.0.1"
    ) as cluster:
        print(cluster.scheduler_address, flush=True)
        for _ in sys.stdin:  # other workers are wanted
            cluster.scale(0)
            while cluster.workers:
                time.sleep(0.05)
            cluster.scale(int(sys.argv[1]))
