"""The simulator in shards: a network larger than one machine's memory, each shard with its own peers only.

    plan    the peers of a shard, its rows of the mixing matrix, and what it sends to whom
    halo    the messages of peers with neighbours in another shard: all that shards exchange in a round
    mixed   inner peers' from local messages, border peers' from these and halos; each sum in its usual order

A shard is a plain object here, or a Ray actor on any machine of a cluster. The driver holds the network and [N]
figures, never [N, C, K]. Between Ray actors halos go from one to the other; only those below 100 kB are part of
Ray's own messages, which pass through the driver.

Ray is for trusted clusters only: whoever reaches its ports can run code. Never between data owners.
"""

from peerbayes.simulation.sharded.driver import ShardedRun, simulate_shards
from peerbayes.simulation.sharded.workers import ShardLost

__all__ = ["ShardLost", "ShardedRun", "simulate_shards"]
