"""Validation: loss and perplexity on held-out text, before and after fine-tuning."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from octad.errors import CheckpointError, ConfigError
from octad.ports.stages import Context
from octad.spec.artefacts import Artefact, Port
from octad.spec.checkpoints import Manifest
from octad.spec.frozen import Spec
from octad.spec.stages import StageSpec
from octad.train.settings import EvaluationJob, Packing, Weights
from octad.train.stage import Outcome, on_workers, verified

_TEXTS: tuple[str, ...] = ("corpus", "tuning")


class Settings(Spec):
    """What is measured.

    Attributes:
        sequence: Tokens of one sample; None means the model's context.
        batch: Samples that one card takes at once.
        max_samples: Of each held-out text.
        prompt_tokens: Taken from held-out text, to begin the generated sample.
        sample_tokens: To generate.
        packing: As the weights were trained: `stream`, or `documents` that see nothing of each
            other.
    """

    sequence: int | None = Field(default=None, ge=2)
    batch: int = Field(default=16, ge=1)
    max_samples: int = Field(default=256, ge=1)
    prompt_tokens: int = Field(default=16, ge=1)
    sample_tokens: int = Field(default=48, ge=1)
    packing: Packing = "stream"


def takes(settings: Settings) -> Mapping[str, Port]:
    """Weights, perhaps tuned ones beside them, and texts."""
    return {
        "base": Port(type="checkpoint"),
        "adapter": Port(type="adapter", is_required=False),
        "tuned": Port(type="checkpoint", is_required=False),
        "corpus": Port(type="dataset"),
        "tuning": Port(type="dataset", is_required=False),
        "tokenizer": Port(type="tokenizer"),
    }


def gives(settings: Settings) -> Mapping[str, Port]:
    """The table, as JSON and Markdown."""
    return {"report": Port(type="report")}


def check(spec: StageSpec, settings: Settings) -> None:
    """Refuse layouts that validation cannot use (ConfigError)."""
    for axis in ("tp", "cp", "pp"):
        size = getattr(spec.layout, axis)
        if size > 1:
            raise ConfigError(
                f"{axis} is {size}, but validation splits only its data",
                where=f"{spec.name}.layout.{axis}",
                hint=f"use {axis} 1",
            )
    if {"adapter", "tuned"} <= set(spec.needs):
        raise ConfigError(
            "an adapter and tuned weights cannot both be compared",
            where=f"{spec.name}.needs",
            hint="remove one of them",
        )


class Validate:
    """One validation stage."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def run(self, context: Context) -> Outcome:
        """Measure, and write the report."""
        manifest = verified(context, context.input("base"))
        weights = _weights(context)
        given = context.order.inputs
        texts = {text: given[text] for text in _TEXTS if text in given}
        job = EvaluationJob(
            order=context.order,
            weights=weights,
            datasets=texts,
            sequence=self._sequence(manifest),
            batch=self.settings.batch,
            max_samples=self.settings.max_samples,
            prompt_tokens=self.settings.prompt_tokens,
            sample_tokens=self.settings.sample_tokens,
            prompt_from="tuning" if "tuning" in texts else "corpus",
            packing=self.settings.packing,
        )
        context.phase("working")
        found = on_workers(context, "octad.train.evaluate:evaluate", job.plain())
        metrics = measures(found["losses"])
        report = self._report(context, found, metrics)
        return (report,), metrics

    def _sequence(self, manifest: Manifest) -> int:
        longest = manifest.model.get("context")
        assert isinstance(longest, int)
        wanted = self.settings.sequence or longest
        if wanted > longest:
            raise ConfigError(
                f"a sequence of {wanted} is longer than the model's context of {longest}",
                where="sequence",
            )
        return wanted

    def _report(
        self, context: Context, found: dict[str, Any], metrics: dict[str, float]
    ) -> Artefact:
        from tokenizers import Tokenizer  # noqa: PLC0415  not there on a laptop

        folder = context.fetch(context.input("tokenizer"))
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        prompt = tokenizer.decode(found["prompt"])
        samples = {name: tokenizer.decode(ids) for name, ids in found["samples"].items()}
        text = markdown(found["losses"], found["tokens"], metrics, prompt, samples)
        print(text, flush=True)  # noqa: T201
        target = context.scratch / "report"
        target.mkdir()
        (target / "report.md").write_text(text)
        raw = {**found, "metrics": metrics, "prompt_text": prompt, "sample_texts": samples}
        (target / "report.json").write_text(json.dumps(raw, indent=2) + "\n")
        return context.publish_folder("report", "report", target)


def build(settings: Settings) -> Validate:
    """The stage."""
    return Validate(settings)


def _weights(context: Context) -> tuple[Weights, ...]:
    """The base weights, and the tuned ones if there are any."""
    inputs = context.order.inputs
    base = context.input("base")
    found = [Weights(name="base", checkpoint=base)]
    if "adapter" in inputs:
        adapter = inputs["adapter"]
        made_for = verified(context, adapter).base
        if made_for is None or made_for.digest != base.digest:
            raise CheckpointError(
                "the adapter was made for other weights than the ones to compare it with",
                where=adapter.uri,
                hint="take both from one run",
            )
        found.append(Weights(name="tuned", checkpoint=base, adapter=adapter))
    elif "tuned" in inputs:
        verified(context, inputs["tuned"])
        found.append(Weights(name="tuned", checkpoint=inputs["tuned"]))
    return tuple(found)


def measures(losses: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Flat metrics: `<weights>_<text>_loss`, `..._perplexity`, and `<text>_gain`, the share by
    which tuning lowers the perplexity.
    """
    metrics: dict[str, float] = {}
    for weights, by_text in losses.items():
        for text, loss in by_text.items():
            metrics[f"{weights}_{text}_loss"] = loss
            metrics[f"{weights}_{text}_perplexity"] = _exp(loss)
    for text, loss in losses.get("tuned", {}).items():
        metrics[f"{text}_gain"] = 1 - _exp(loss - losses["base"][text])
    return metrics


def _exp(power: float) -> float:
    """The exponential; infinite where that is too large for a number."""
    try:
        return math.exp(power)
    except OverflowError:
        return math.inf


def markdown(
    losses: Mapping[str, Mapping[str, float]],
    tokens: Mapping[str, int],
    metrics: Mapping[str, float],
    prompt: str,
    samples: Mapping[str, str],
) -> str:
    """The report for people."""
    lines = [
        "| held-out text | tokens | weights | loss | perplexity |",
        "|---|---|---|---|---|",
    ]
    for text, count in tokens.items():
        for weights, by_text in losses.items():
            loss = by_text[text]
            lines.append(f"| {text} | {count} | {weights} | {loss:.4f} | {_exp(loss):.2f} |")
    for text in tokens:
        if f"{text}_gain" in metrics:
            gain = metrics[f"{text}_gain"]
            way = "lowers" if gain >= 0 else "raises"
            lines += ["", f"Tuning {way} perplexity on {text} by {abs(gain):.1%}."]
    for weights, sample in samples.items():
        lines += ["", f"Sample of {weights}, after {prompt!r}:", "", "```", sample, "```"]
    return "\n".join(lines) + "\n"
