"""Driver 1 in pieces: a network larger than one machine's memory, cut into shards that hold their own peers only.

    plan    the peers of a shard, its rows of the mixing matrix, and what it sends to whom
    halo    the messages of peers that have neighbours in another shard: all that shards send each other in a round
    mixed   inner peers' from messages at hand, border peers' from these and halos; each sum in its usual order

A shard is a plain object here, or a Ray actor on any machine of a cluster. The driver holds the network and [N]
figures, never [N, C, K]. Between Ray actors halos go from one to the other; only those below 100 kB does Ray take along
with its own messages, which pass the driver.

Ray is for trusted clusters only: whoever reaches its ports can run code. Never between data owners.
"""

from peerbayes.shards.driver import ShardedRun, simulate_shards
from peerbayes.shards.engines import ShardLost

__all__ = ["ShardLost", "ShardedRun", "simulate_shards"]
