"""Text to tokens: a tokenizer and datasets.

By hand, on the machine of a Ray cluster or through `ray job submit --working-dir . --`, with
PYTHONPATH=platform and RAY_ADDRESS set:

    python jobs/preprocess.py run=my-run preprocess.cards=2 storage.url=file:///shared/octad
Any override of `octad submit` works too. A control plane starts it with --order instead.
"""

from octad.stages import main

if __name__ == "__main__":
    raise SystemExit(main("preprocess"))
