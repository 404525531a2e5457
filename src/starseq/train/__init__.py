"""Training: data, objective, learning rate, the loop, and what a stopped run needs to go on.

The loop is written on Lightning's Fabric, which launches processes and moves tensors and gradients between them: a step is
then one visible sequence of lines, and nothing but the loop decides what a checkpoint holds. Dropout is a pure function of
(seed, epoch, position, rank), like batches and augmentation, so no state of a random generator has to be saved.
"""

from __future__ import annotations

from starseq.train.data import DataReport, TrainingData, training_data
from starseq.train.loop import Loop, TrainResult
from starseq.train.metrics import Metrics, read_metrics

__all__ = ["DataReport", "Loop", "Metrics", "TrainResult", "TrainingData", "read_metrics", "training_data"]
