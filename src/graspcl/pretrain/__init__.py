"""Pretraining: what happens to a network and its codec before the stream starts."""

from graspcl.pretrain.codec import fit_codec
from graspcl.pretrain.stage import Settings, WeightsStage, stages
from graspcl.pretrain.supervised import SupervisedSettings, train_accuracy
from graspcl.pretrain.swav import SwavSettings
from graspcl.pretrain.trainer import Trainer, make_trainer, pretrain_once
from graspcl.pretrain.weights import load_codec, load_weights, read_header, read_weights, save_weights

__all__ = [
    "Settings",
    "SupervisedSettings",
    "SwavSettings",
    "Trainer",
    "WeightsStage",
    "fit_codec",
    "load_codec",
    "load_weights",
    "make_trainer",
    "pretrain_once",
    "read_header",
    "read_weights",
    "save_weights",
    "stages",
    "train_accuracy",
]
