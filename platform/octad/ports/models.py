"""What a file or folder of `octad.models` fills. Its top imports no torch: laptops load it.

class Settings(Spec): ...                         sizes; `vocab` None means "as the tokenizer"
def check(settings, layout) -> None               refuse a mesh that does not divide (ConfigError)
def build(settings) -> torch.nn.Module            on the current default device
def parallelise(model, mesh) -> None              tensor parallel, in place
def to_hf(settings, state) / config_hf(settings)  weights and config in Hugging Face's naming
"""
