"""How a sample is stored: as it is, in half precision, or product-quantised."""

from graspcl.codec.base import Codec, codecs
from graspcl.codec.encoded import Encoded
from graspcl.codec.opq import OPQ
from graspcl.codec.plain import Half, Identity

__all__ = ["OPQ", "Codec", "Encoded", "Half", "Identity", "codecs"]
