"""What a file or folder of `octad.models` fills. Its top imports no torch: laptops load it.

class Settings(Spec): ...                         sizes; `vocab` None means "as the tokenizer",
                                                  `context` is the longest sequence; `resolved()`
                                                  fills in what follows from other sizes: equal
                                                  where the networks are
def check(settings, layout, where) -> None        refuse a mesh that does not divide (ConfigError)
def layers(settings) -> dict[str, tuple[int, int]]
                                                  linear layers that an adapter can be put on, with
                                                  features in and out
def flops_per_token(settings, sequence, adapters) -> float
                                                  of training, without recomputing; `adapters`
                                                  when all that was there is frozen
def width(settings) -> int                         features of one token between blocks
def shared(settings) -> tuple[str, ...]           parameters that both the first and the last part
                                                  of a split model hold
def init_std(settings, name) -> float | None      how a parameter starts; None: norms 1, biases 0
def build(settings) -> torch.nn.Module            on the current default device; its forward takes
                                                  int64 ids B S and `segments` (B S or None)
def blocks(model) -> list[nn.Module]              what is sharded and recomputed piece by piece
def split(model, part, parts) -> None             keep one of several runs of blocks, in place
def add_prefix(model, tokens) -> None             learned keys and values for all to see, in place;
                                                  only where there is attention
def parallelise(model, tp) -> None                tensor parallel over one mesh axis, in place
hugging_face                                      a module: weights and config in Hugging Face's
                                                  naming, in and out; `MODEL_TYPES` are those that
                                                  it reads
peft                                              a module: adapters in PEFT's format, in and out
"""
