"""Clusters of processes on this machine, for the tests of `cudnnpy tune --dask`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cudnnpy.cli.tuning_cluster import Cluster, ClusterError

HERE = Path(__file__).resolve().parent
PROCESSES: dict[str, subprocess.Popen[str]] = {}  # of clusters, by address


@contextmanager
def local_cluster(
    *arguments: str, environment: Mapping[str, str] = os.environ
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    paths = [str(HERE.parents[1]), str(HERE), str(HERE.parent / "shared"), environment.get("PYTHONPATH", "")]
    with subprocess.Popen(
        [sys.executable, str(HERE / "cluster_child.py"), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            PROCESSES[address] = process
            yield address, process
        finally:
            assert process.stdin is not None
            process.stdin.close()


def ready(scheduler: str, work: Any, workers: int = 2) -> Cluster:
    """A Cluster of so many workers, when those that the test before has ended are there again.

    A nanny gives up if its new worker ends while it starts. After a while the cluster gets other workers.
    """
    notes: list[str] = []
    for number in range(200):
        try:
            found = Cluster(scheduler, work)
            if len(found.devices) == workers:
                return found
            notes = found.notes
            found.close()
        except ClusterError as error:
            notes = [str(error)]
        if number % 60 == 59 and (stdin := PROCESSES[scheduler].stdin) is not None:
            stdin.write("other workers\n")
            stdin.flush()
        Path(work.folder, "odd").unlink(missing_ok=True)
        time.sleep(0.1)
    raise AssertionError(f"the cluster must have {workers} workers; got {notes}")
