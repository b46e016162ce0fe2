"""Optimisers as init and step. The same ones move clients (along gradients) and the server (along minus updates)."""

from fedlag.optim.adagrad import Adagrad
from fedlag.optim.adam import Adam
from fedlag.optim.flash import Flash
from fedlag.optim.optimizer import Optimizer
from fedlag.optim.sgd import SGD
from fedlag.optim.yogi import Yogi

__all__ = ["SGD", "Adagrad", "Adam", "Flash", "Optimizer", "Yogi"]
