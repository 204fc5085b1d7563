"""A Ray cluster on the loopback address, as a program: ``python small_cluster.py CPUS...``, a node for each number.

It prints its address and the process of every node, in one line, and ends with its standard input.
"""

from __future__ import annotations

import select
import sys
from typing import Any

import ray
from ray.cluster_utils import Cluster

if __name__ == "__main__":
    arguments: list[dict[str, Any]] = [{"num_cpus": int(cpus), "include_dashboard": False} for cpus in sys.argv[1:]]
    first, *others = arguments
    cluster = Cluster(initialize_head=True, head_node_args=first)
    try:
        nodes = [cluster.head_node, *(cluster.add_node(**node) for node in others)]
        raylets = [node.all_processes["raylet"][0].process for node in nodes]
        print(cluster.address, *(raylet.pid for raylet in raylets), flush=True)
        while not select.select([sys.stdin], [], [], 0.1)[0]:
            for raylet in raylets:
                # One that was killed has to be gone, or its workers take it for alive.
                raylet.poll()
    finally:
        ray.shutdown()
        cluster.shutdown()
