"""A model as one file for other programs: images in, probabilities out."""
