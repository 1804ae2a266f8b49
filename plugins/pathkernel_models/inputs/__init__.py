"""What a model is run on: batches, labels, masks, and the outputs that are asked for."""
