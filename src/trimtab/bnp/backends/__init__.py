"""What computes the algorithm: plain PyTorch, C on the CPU, Triton on an NVIDIA GPU, behind one protocol.

The C library is built when trimtab is installed and a compiler is there; Triton comes with PyTorch. Without them, and
for whatever they do not take, the reference does the work. All of them are tested to give what it gives.
"""

from trimtab.bnp.backends.buffers import BufferMoments, InputLayout
from trimtab.bnp.backends.choice import Backend, Backends, describe

__all__ = ["Backend", "Backends", "BufferMoments", "InputLayout", "describe"]
