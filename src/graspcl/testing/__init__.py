"""One contract per kind of part, which all built-in parts fulfil. Run it on your own parts as well."""

from graspcl.testing.buffers import check_buffer, check_maintenance
from graspcl.testing.codecs import check_codec
from graspcl.testing.data import check_data
from graspcl.testing.learners import check_learner
from graspcl.testing.networks import check_network
from graspcl.testing.policies import check_policy
from graspcl.testing.streams import check_stream

__all__ = [
    "check_buffer",
    "check_codec",
    "check_data",
    "check_learner",
    "check_maintenance",
    "check_network",
    "check_policy",
    "check_stream",
]
