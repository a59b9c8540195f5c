"""Learning on several processes or machines at once (torch.distributed): same draws and weights as in one process."""

from graspcl.distributed.learners import distributed, refuse_policy
from graspcl.distributed.ranks import Ranks, is_first, joined, launched, text_digest
from graspcl.distributed.shards import ShardedBuffer

__all__ = [
    "Ranks",
    "ShardedBuffer",
    "distributed",
    "is_first",
    "joined",
    "launched",
    "refuse_policy",
    "text_digest",
]
