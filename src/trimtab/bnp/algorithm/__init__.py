"""The bnp paper's Algorithms 2 and 3 in PyTorch's public operations: `step` is what a step does to one layer."""
