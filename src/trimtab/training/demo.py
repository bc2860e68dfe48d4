"""The demonstration: a comparison that takes a minute or two."""

from trimtab.training.grid import Grid

DEMO = Grid(
    data="digits",
    networks=("small-cnn", "small-mlp"),
    methods=("vanilla", "bn", "ln", "bnp"),
    batch_sizes=(64, 4, 2, 1),
    # Passes over the 1000 training images: enough steps at each batch size to tell the methods apart.
    epochs={64: 10, 4: 2, 2: 1, 1: 1},
    lrs=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
    validation=397,
)
