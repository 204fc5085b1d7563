"""Models: what a method has learnt, ready to predict, to save and to learn on."""
