"""Which rows count: those whose gradient the next step will use, each once.

`model` observes the layers of a model and `layer` one of them; `books` keeps the books for eager code and `compiled`
for compiled code.
"""
