"""BNP and probes inside the frameworks that people train with: Lightning and the Trainer of transformers.

Each module needs the package that it is named after, so none is imported here. Accelerate needs no module:
`BNP.attach` takes a prepared optimizer, and `accelerator.register_for_checkpointing` a BNP.
"""
