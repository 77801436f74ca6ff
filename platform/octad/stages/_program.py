"""A program of the user's own, from its inputs to its outputs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from octad.errors import StageError
from octad.spec.artefacts import Artefact, ArtefactType
from octad.stages._attempt import Attempt
from octad.stages._job_settings import Settings, variable
from octad.stages._reported import ReportedMetrics
from octad.stages._script import Script, check_line_ends
from octad.train.recorder import Recorder


class Program:
    """Runs the program once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def run(self, context: Attempt) -> tuple[tuple[Artefact, ...], dict[str, float]]:
        """Fetch the inputs, run the program, publish the outputs.

        Raises:
            StageError: It failed, or an output is empty.
            DataError: An input is damaged.
        """
        settings = self._settings
        check_line_ends(settings.command)
        context.grace_s = settings.grace_s + 15.0
        context.phase("loading")
        inputs = {name: context.fetch(context.input(name)) for name in settings.inputs}
        outputs = {name: context.scratch / "outputs" / name for name in settings.outputs}
        for folder in outputs.values():
            folder.mkdir(parents=True)
        context.phase("working")
        recorder = Recorder(context.order.store, context.keys, context.scratch, 0)
        recorder.phase("working")
        reported = ReportedMetrics(context.scratch / "metrics.jsonl", recorder)
        try:
            self._run(context, recorder, self._environment(context, inputs, outputs))
        finally:
            reported.close()
            if reported.num_bad:
                recorder.note(f"{reported.num_bad} lines of OCTAD_METRICS were no metrics: skipped")
            recorder.close()
        context.phase("saving")
        made = tuple(
            self._publish(context, name, kind, outputs[name])
            for name, kind in settings.outputs.items()
        )
        return made, reported.last

    def _run(self, context: Attempt, recorder: Recorder, environment: Mapping[str, str]) -> None:
        script = Script(self._settings.command, environment, self._settings.grace_s)
        try:
            code = script.run()
        except BaseException:
            script.terminate()
            raise
        finally:
            if not script.close():
                recorder.note("a process of the program could not be ended")
        if code:
            raise self._failure(code, script.last_lines, context.order.stage.name)

    def _failure(self, code: int, last_lines: str, stage: str) -> StageError:
        how = f"ended by signal {-code}" if code < 0 else f"exit code {code}"
        shown = f"; its last lines:\n{last_lines}" if last_lines else ", without a word"
        error = StageError(f"the program failed: {how}{shown}", where=stage)
        # A shell says 128 + n for a child that a signal ended.
        by_signal = code < 0 or 128 < code < 128 + signal.NSIG
        error.is_final = not by_signal and code not in self._settings.retry_on
        return error

    def _publish(self, context: Attempt, name: str, kind: ArtefactType, folder: Path) -> Artefact:
        if not any(path.is_file() for path in folder.rglob("*")):
            error = StageError(
                f"the program made no {name}: its folder is empty",
                where=f"{context.order.stage.name}.outputs.{name}",
                hint=f"write to the folder that {variable('OUTPUT', name)} names",
            )
            error.is_final = True
            raise error
        return context.publish_folder(name, kind, folder)

    def _environment(
        self, context: Attempt, inputs: Mapping[str, Path], outputs: Mapping[str, Path]
    ) -> dict[str, str]:
        order = context.order
        scratch = context.scratch / "own"
        scratch.mkdir()
        return {
            **os.environ,
            # `python` is the interpreter that runs octad, wherever the program changes to.
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            "PYTHONPATH": os.pathsep.join(
                str(Path(entry).absolute())
                for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)
                if entry
            ),
            **{name: str(value) for name, value in self._settings.env.items()},
            **{variable("INPUT", name): str(path) for name, path in inputs.items()},
            **{variable("OUTPUT", name): str(path) for name, path in outputs.items()},
            "OCTAD_RUN": order.run,
            "OCTAD_STAGE": order.stage.name,
            "OCTAD_ATTEMPT": str(order.attempt),
            "OCTAD_CARDS": str(order.stage.cards),
            "OCTAD_METRICS": str(context.scratch / "metrics.jsonl"),
            "OCTAD_SCRATCH": str(scratch),
        }
