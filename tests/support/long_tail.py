"""Class counts of the published long-tailed streams."""

from __future__ import annotations

SIZES = {
    # dataset, scenario, steps: the training images of each task
    ("cifar100", "ordered", 5): [9901, 394, 247, 152, 95, 58],
    ("cifar100", "ordered", 10): [9901, 220, 174, 137, 110, 85, 67, 54, 41, 32, 26],
    ("cifar100", "shuffled", 5): [5244, 891, 1322, 1350, 1494, 546],
    ("cifar100", "shuffled", 10): [5244, 378, 513, 519, 803, 671, 679, 530, 964, 202, 344],
    ("imagenet100", "ordered", 5): [25785, 1035, 648, 404, 252, 157],
    ("imagenet100", "ordered", 10): [25785, 578, 457, 362, 286, 226, 178, 142, 110, 88, 69],
    ("imagenet100", "shuffled", 5): [16417, 3742, 2346, 1695, 1995, 2086],
    ("imagenet100", "shuffled", 10): [16417, 2021, 1721, 1306, 1040, 1034, 661, 1031, 964, 1636, 450],
}
