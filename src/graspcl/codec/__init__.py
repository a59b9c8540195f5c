"""How a sample is stored: unmodified, in half precision, product-quantised, or as an image file."""

from graspcl.codec.codec import Codec, Half, Identity, codecs
from graspcl.codec.image_files import Encoded
from graspcl.codec.opq import OPQ

__all__ = ["OPQ", "Codec", "Encoded", "Half", "Identity", "codecs"]
