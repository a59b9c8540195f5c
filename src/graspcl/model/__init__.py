"""Split networks: a frozen part that makes latents, a plastic part that learns from them, and a head that grows."""

from graspcl.model.efficientnet import efficientnet_lite0
from graspcl.model.execution import Execution
from graspcl.model.head import CosineHead, Head, LinearHead
from graspcl.model.layers import GlobalAveragePool, ImageInput, SeededDropout, build
from graspcl.model.mobilenet import mobilenet_v3_large
from graspcl.model.mobilevit import mobilevit_s
from graspcl.model.network import Outputs, SplitNetwork, make_network, networks, veridical
from graspcl.model.small import small_network, vector_network, wide_network
from graspcl.model.texts import StaticTextEncoder, TextInputs, Tokenizer, packaged_encoder
from graspcl.model.timm import timm_network
from graspcl.model.transformer import transformer_network

__all__ = [
    "CosineHead",
    "Execution",
    "GlobalAveragePool",
    "Head",
    "ImageInput",
    "LinearHead",
    "Outputs",
    "SeededDropout",
    "SplitNetwork",
    "StaticTextEncoder",
    "TextInputs",
    "Tokenizer",
    "build",
    "efficientnet_lite0",
    "make_network",
    "mobilenet_v3_large",
    "mobilevit_s",
    "networks",
    "packaged_encoder",
    "small_network",
    "timm_network",
    "transformer_network",
    "vector_network",
    "veridical",
    "wide_network",
]
