"""LightningModules and the backbones they train."""

from lfl.models.backbone import Backbone
from lfl.models.causal_lm import CausalLM
from lfl.models.classifier import Classifier
from lfl.models.cnn import McMahanCNN
from lfl.models.fast_text import FastText
from lfl.models.feature_generator import FeatureGenerator
from lfl.models.lenet import LeNet5
from lfl.models.lstm import CharLSTM, TextLSTM
from lfl.models.mlp import MLP
from lfl.models.resnet import CifarResNet, ResNet

__all__ = [
    "MLP",
    "Backbone",
    "CausalLM",
    "CharLSTM",
    "CifarResNet",
    "Classifier",
    "FastText",
    "FeatureGenerator",
    "LeNet5",
    "McMahanCNN",
    "ResNet",
    "TextLSTM",
]
