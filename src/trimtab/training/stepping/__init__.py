"""One training step, and how it is executed: eagerly or as a CUDA graph, compiled or not."""
