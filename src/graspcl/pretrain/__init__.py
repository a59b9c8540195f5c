"""Pretraining: what happens to a network and its codec before the stream starts."""

from graspcl.pretrain.codec import fit_codec, load_codec
from graspcl.pretrain.supervised import SupervisedSettings, cutmix, mixup, train_accuracy
from graspcl.pretrain.swav import SwavHead, SwavSettings, sinkhorn, swapped_loss
from graspcl.pretrain.trainer import Epoch, Settings, Trainer, make_trainer, pretrain, pretrain_once, trainers
from graspcl.pretrain.weights import LoadReport, load_weights, read_header, read_weights, save_weights

__all__ = [
    "Epoch",
    "LoadReport",
    "Settings",
    "SupervisedSettings",
    "SwavHead",
    "SwavSettings",
    "Trainer",
    "cutmix",
    "fit_codec",
    "load_codec",
    "load_weights",
    "make_trainer",
    "mixup",
    "pretrain",
    "pretrain_once",
    "read_header",
    "read_weights",
    "save_weights",
    "sinkhorn",
    "swapped_loss",
    "train_accuracy",
    "trainers",
]
