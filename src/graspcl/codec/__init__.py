"""How a sample is stored: unmodified, in half precision, in bytes, product-quantised, or as an image file."""

from graspcl.codec.auto import Auto, described, ladder
from graspcl.codec.codec import Codec, Half, Identity, codecs
from graspcl.codec.image_files import Encoded
from graspcl.codec.int8 import Int8
from graspcl.codec.opq import OPQ

__all__ = ["OPQ", "Auto", "Codec", "Encoded", "Half", "Identity", "Int8", "codecs", "described", "ladder"]
