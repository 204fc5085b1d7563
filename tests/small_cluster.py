"""A Ray cluster on the loopback address, as a program: ``python small_cluster.py CPUS...``, a node for each number.

It prints its address and the process of every node, in one line, and ends with its standard input.
"""

from __future__ import annotations

import sys

import ray
from ray.cluster_utils import Cluster

if __name__ == "__main__":
    first, *others = [{"num_cpus": int(cpus), "include_dashboard": False} for cpus in sys.argv[1:]]
    cluster = Cluster(initialize_head=True, head_node_args=first)
    try:
        nodes = [cluster.head_node, *(cluster.add_node(**node) for node in others)]
        print(cluster.address, *(node.all_processes["raylet"][0].process.pid for node in nodes), flush=True)
        sys.stdin.read()
    finally:
        ray.shutdown()
        cluster.shutdown()
