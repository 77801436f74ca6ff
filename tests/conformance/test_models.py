"""Every model family, over every size that `conf/model` has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
import yaml

from octad.errors import ConfigError
from octad.ports.registry import kinds, load
from octad.spec.layouts import Layout
from octad.train.export import groups

CONF = Path(__file__).resolve().parents[2] / "conf" / "model"
SIZES = sorted(CONF.glob("*.yaml"))
MANY = 10_000_000  # parameters of a model that a test holds in memory


def sized(path: Path, vocab: int = 97) -> tuple[Any, Any]:
    raw = yaml.safe_load(path.read_text())
    family = load("octad.models", raw["kind"])
    return family, family.Settings.parse({**raw, "vocab": vocab})


def built(family: Any, settings: Any) -> torch.nn.Module:
    """A model without memory."""
    with torch.device("meta"):
        model: torch.nn.Module = family.build(settings)
    return model


def is_small(path: Path) -> bool:
    return sum(p.numel() for p in built(*sized(path)).parameters()) <= MANY


SMALL = [path for path in SIZES if is_small(path)]


def started(family: Any, settings: Any) -> torch.nn.Module:
    """A model as training starts it."""
    model = built(family, settings)
    model.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            std = family.init_std(settings, name)
            if std is None:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            else:
                parameter.normal_(0.0, std, generator=generator)
    return model


def test_every_family_has_a_size() -> None:
    assert {yaml.safe_load(p.read_text())["kind"] for p in SIZES} == set(kinds("octad.models"))


@pytest.mark.parametrize("family", kinds("octad.models"))
def test_a_laptop_can_load_it(family: str) -> None:
    code = f"import sys, octad.models.{family}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("path", SMALL, ids=lambda p: p.stem)
def test_it_starts_near_chance_and_learns_one_batch(path: Path) -> None:
    family, settings = sized(path)
    model = started(family, settings)
    ids = torch.randint(0, 97, (2, 17), generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(12):
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[0] == pytest.approx(torch.tensor(97.0).log().item(), abs=0.4)
    assert losses[-1] < 0.7 * losses[0]


def parts_of(family: Any, settings: Any, whole: torch.nn.Module, count: int) -> Any:
    """Each part of a split model, with the weights that it holds of the whole."""
    weights = whole.state_dict()
    for number in range(count):
        part = built(family, settings)
        family.split(part, number, count)
        part.to_empty(device="cpu")
        part.load_state_dict({name: weights[name] for name in part.state_dict()})
        yield part


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("path", SMALL, ids=lambda p: p.stem)
def test_its_parts_in_a_row_are_the_whole(path: Path, tied: bool) -> None:
    family, settings = sized(path)
    if "tied" in settings.plain():
        settings = family.Settings.parse({**settings.plain(), "tied": tied})
    whole = started(family, settings)
    ids = torch.randint(0, 97, (2, 9), generator=torch.Generator().manual_seed(1))
    segments = torch.tensor([[0] * 4 + [1] * 5, [0] * 9])
    for count in range(1, len(family.blocks(whole)) + 1):
        features, held = ids, []
        for part in parts_of(family, settings, whole, count):
            assert len(family.blocks(part)) >= 1
            features = part(features, segments=segments)
            held += [name for name, _ in part.named_parameters()]
        assert torch.equal(features, whole(ids, segments=segments))
        twice = {name for name in held if held.count(name) > 1}
        assert set(held) == {name for name, _ in whole.named_parameters()}
        assert twice == (set(family.shared(settings)) if count > 1 else set())


@pytest.mark.parametrize("path", SMALL, ids=lambda p: p.stem)
def test_no_token_sees_a_later_one(path: Path) -> None:
    family, settings = sized(path)
    model = started(family, settings).eval()
    ids = torch.randint(0, 97, (1, 12), generator=torch.Generator().manual_seed(1))
    changed = ids.clone()
    changed[0, 8] = (changed[0, 8] + 1) % 97
    with torch.no_grad():
        before, after = model(ids), model(changed)
    assert torch.equal(before[:, :8], after[:, :8])
    assert not torch.equal(before[:, 8:], after[:, 8:])


@pytest.mark.parametrize("path", SIZES, ids=lambda p: p.stem)
def test_every_weight_has_one_place_in_hugging_face_naming(path: Path) -> None:
    family, settings = sized(path)
    with torch.device("meta"):
        model = family.build(settings)
    state = dict(model.named_parameters())
    named = groups(family, settings, state)
    assert sorted(name for ours in named.values() for name in ours) == sorted(state)
    config = family.hugging_face.config(settings)
    assert config["vocab_size"] == 97
    assert ("lm_head.weight" in named) is not config["tie_word_embeddings"]


@pytest.mark.parametrize("path", SIZES, ids=lambda p: p.stem)
def test_a_mesh_that_does_not_divide_is_refused(path: Path) -> None:
    family, settings = sized(path)
    with pytest.raises(ConfigError, match="7"):
        family.check(settings, Layout(dp_shard=1, tp=7))
    with pytest.raises(ConfigError, match="1000 parts"):
        family.check(settings, Layout(dp_shard=1, pp=1000))
    family.check(settings, Layout(dp_shard=5))
