"""Pretraining: what happens to a network and its codec before the stream starts."""

from graspcl.pretrain.codec import fit_codec
from graspcl.pretrain.supervised import SupervisedSettings, train_accuracy
from graspcl.pretrain.swav import SwavSettings
from graspcl.pretrain.trainer import Trainer, make_trainer, pretrain_once, trainers
from graspcl.pretrain.weights import load_codec, load_weights, read_header, read_weights, save_weights

__all__ = [
    "SupervisedSettings",
    "SwavSettings",
    "Trainer",
    "fit_codec",
    "load_codec",
    "load_weights",
    "make_trainer",
    "pretrain_once",
    "read_header",
    "read_weights",
    "save_weights",
    "train_accuracy",
    "trainers",
]
