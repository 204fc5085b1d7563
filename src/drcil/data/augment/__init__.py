"""Augmentation of whole batches: tensor programs on uint8 images (N, C, H, W), on any device.

Operations are functions of images and one value per image. Values are drawn on the CPU from the generator
argument, so that devices agree, and only the values that an operation needs are moved to the images.
"""

from ...seeding import Draws
from .pipelines import AUGMENTS, Augment, build_augment, normalise

__all__ = ["AUGMENTS", "Augment", "Draws", "build_augment", "normalise"]
