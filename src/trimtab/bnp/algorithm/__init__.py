"""The bnp paper's Algorithms 2 and 3 in PyTorch's public operations: no hooks, no caches, nothing compiled.

`step` is what one optimizer step does to one layer; `moments`, `averages` and `transform` are what it does it with.
"""
