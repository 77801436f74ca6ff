"""Compare weights on held-out text.

By hand, on the machine of a Ray cluster or through `ray job submit --working-dir . --`, with
PYTHONPATH=platform and RAY_ADDRESS set:

    python jobs/validate.py run=my-run validate.cards=1 storage.url=file:///shared/octad

What it needs must have been made in the same run and store before.
Any override of `octad submit` works too. A control plane starts it with --order instead.
"""

from octad.stages import main

if __name__ == "__main__":
    raise SystemExit(main("validate"))
