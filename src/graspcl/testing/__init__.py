"""One contract per kind of part: what every built-in passes, and a third party can run on a class of their own."""

from graspcl.testing.buffers import check_buffer, check_maintenance
from graspcl.testing.codecs import check_codec
from graspcl.testing.data import check_data
from graspcl.testing.learners import check_learner
from graspcl.testing.policies import check_policy
from graspcl.testing.streams import check_stream

__all__ = [
    "check_buffer",
    "check_codec",
    "check_data",
    "check_learner",
    "check_maintenance",
    "check_policy",
    "check_stream",
]
