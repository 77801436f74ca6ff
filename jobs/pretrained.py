"""Take in weights of Hugging Face's, and perhaps an adapter of PEFT's.

By hand, on the machine of a Ray cluster or through `ray job submit --working-dir . --`, with
PYTHONPATH=platform and RAY_ADDRESS set:

    python jobs/pretrained.py pipeline=finetune run=my-run pretrained.weights.path=/models/gpt2 \
        model=gpt2_124m storage.url=file:///shared/octad

Any override of `octad submit` works too. A control plane starts it with --order instead.
"""

from octad.stages import main

if __name__ == "__main__":
    raise SystemExit(main("pretrained"))
