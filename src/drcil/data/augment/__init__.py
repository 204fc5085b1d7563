"""Augmentation of whole batches: tensor programs on uint8 images (N, C, H, W), on any device.

Operations are functions of images and one value per image. Values are drawn on the CPU from the generator that is
given, so that devices agree, and only what an operation needs of them is moved to the images.
"""

from ...keys import Draws
from .pipeline import AUGMENTS, Augment, build_augment, normalise

__all__ = ["AUGMENTS", "Augment", "Draws", "build_augment", "normalise"]
