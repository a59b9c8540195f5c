"""Split networks: a frozen part that makes latents, a plastic part that learns from them, and a head that grows."""

from graspcl.model.efficientnet import efficientnet_lite0, efficientnet_lite0_classifier
from graspcl.model.head import CosineHead
from graspcl.model.layers import (
    ChannelsLast,
    FrozenBatchNorm2d,
    GlobalAveragePool,
    ImageInput,
    InvertedResidual,
    PaddedConv2d,
    SameConv2d,
    SeededDropout,
    SqueezeExcitation,
    StandardizedConv2d,
)
from graspcl.model.mlp import vector_network
from graspcl.model.mobilenet import mobilenet_v3_large
from graspcl.model.seeding import build, fork, initialise
from graspcl.model.split import Outputs, SplitNetwork
from graspcl.model.text import StaticTextEncoder

__all__ = [
    "ChannelsLast",
    "CosineHead",
    "FrozenBatchNorm2d",
    "GlobalAveragePool",
    "ImageInput",
    "InvertedResidual",
    "Outputs",
    "PaddedConv2d",
    "SameConv2d",
    "SeededDropout",
    "SplitNetwork",
    "SqueezeExcitation",
    "StandardizedConv2d",
    "StaticTextEncoder",
    "build",
    "efficientnet_lite0",
    "efficientnet_lite0_classifier",
    "fork",
    "initialise",
    "mobilenet_v3_large",
    "vector_network",
]
