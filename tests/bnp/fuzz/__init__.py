"""Random cases for BNP, each from one seed: odd layers, odd tensors, models that change between two calls.

`python -m tests.bnp.fuzz --cases 20000` runs many of them, `--seed 17 --cases 1` runs one again. `make sanitize` runs
them with C kernels that report each access outside a tensor.

    draw.py     random choices
    tensors.py  tensors in unusual memory: strides, offsets, no alignment
    layers.py   layers that are used as they are meant to be
    odd.py      subclasses with a forward of their own, registered functions that return something wrong
    changes.py  what happens to a model, its gradients and the state of BNP in the middle of training
    play.py     one case: a short training, with or without BNP
    check.py    what a case must come to
"""
