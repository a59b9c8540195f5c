"""Base initialisation: what happens to a network and a codec before the stream begins."""

from graspcl.pretrain.initialise import METHODS, fit_codec, initialise, make_trainer
from graspcl.pretrain.supervised import (
    SupervisedSettings,
    SupervisedTrainer,
    cutmix,
    mixup,
    train_accuracy,
    train_supervised,
)
from graspcl.pretrain.swav import SwavHead, SwavSettings, SwavTrainer, sinkhorn, swapped_loss, train_swav
from graspcl.pretrain.trainer import Epoch, Settings, Trainer
from graspcl.pretrain.weights import LoadReport, load_codec, load_weights, read_header, read_weights, save_weights

__all__ = [
    "METHODS",
    "Epoch",
    "LoadReport",
    "Settings",
    "SupervisedSettings",
    "SupervisedTrainer",
    "SwavHead",
    "SwavSettings",
    "SwavTrainer",
    "Trainer",
    "cutmix",
    "fit_codec",
    "initialise",
    "load_codec",
    "load_weights",
    "make_trainer",
    "mixup",
    "read_header",
    "read_weights",
    "save_weights",
    "sinkhorn",
    "swapped_loss",
    "train_accuracy",
    "train_supervised",
    "train_swav",
]
