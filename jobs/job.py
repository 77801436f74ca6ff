"""Run a program of your own as a stage.

By hand, on the machine of a Ray cluster or through `ray job submit --working-dir . --`, with
PYTHONPATH=platform and RAY_ADDRESS set:

    python jobs/job.py pipeline=my_pipeline run=my-run my_stage.cards=1 storage.url=file:///shared/octad
Any override of `octad submit` works too. A control plane starts it with --order instead.
"""

from octad.stages import main

if __name__ == "__main__":
    raise SystemExit(main("job"))
