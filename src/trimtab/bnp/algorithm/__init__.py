"""The bnp paper's Algorithms 2 and 3 in PyTorch's public operations: no hooks, no caches, nothing compiled.

`moments` has the statistics of a layer's input, `averages` their running averages, `transform` the change of the
gradients, and `step` puts them together: what one optimizer step does to one layer.
"""
