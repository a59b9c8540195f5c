"""How a sample is stored: as it is, in half precision, or product-quantised."""

from graspcl.codec.codec import Codec, Half, Identity, codecs
from graspcl.codec.image_files import Encoded
from graspcl.codec.opq import OPQ

__all__ = ["OPQ", "Codec", "Encoded", "Half", "Identity", "codecs"]
