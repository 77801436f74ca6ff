"""What a file of this folder fills: a kind of adapter, which trains a little beside a model whose
weights stay as they are. Its module imports torch only in functions: laptops load it.

class Settings(Spec): ...                         the kind's own keys, `kind` among them
def check(settings, family, model, where) -> None refuse what cannot be put on a model (ConfigError)
def room(settings) -> int                         tokens of the model's context that it takes
def insert(settings, family, part) -> None        add parameters to a part of a model, in place; the
                                                  part is split over `tp`, and not yet sharded
def init_std(settings, name) -> float             how a parameter of it starts: 0 is all zeros
"""
