"""The loss scale of fp16, and what formats ask of a card."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from octad.errors import ConfigError
from octad.spec.layouts import Layout
from octad.spec.stages import StageSpec
from octad.stages import pretrain
from octad.train.precision import LossScale, convert, policy
from octad.train.settings import Precision

FP16_MAX = 65504.0


@given(
    gradients=st.lists(st.floats(min_value=1e-8, max_value=1e12), min_size=1, max_size=60),
    initial=st.floats(min_value=1.0, max_value=2.0**40),
    growth=st.integers(min_value=1, max_value=5),
)
def test_no_step_overflows_that_need_not(
    gradients: list[float], initial: float, growth: int
) -> None:
    """Whatever comes: a step that overflows halves the scale, until none is left to halve."""
    scale = LossScale(growth, initial)
    skipped = 0
    for gradient in gradients:
        before = scale.scale
        is_finite = gradient * before <= FP16_MAX
        if not scale.update(is_finite=is_finite):
            assert before == 1.0
            assert gradient > FP16_MAX
            break
        skipped += not is_finite
        assert scale.scale == (before if is_finite else max(1.0, before / 2)) or (
            is_finite and scale.scale == 2 * before
        )
        assert scale.scale >= 1.0
    assert scale.num_skipped == skipped


def test_the_scale_recovers_and_grows_again() -> None:
    scale = LossScale(growth_steps=3, scale=2.0**20)
    found = []
    for _ in range(40):
        is_finite = 4.0 * scale.scale <= FP16_MAX
        assert scale.update(is_finite=is_finite)
        found.append(is_finite)
    assert found[:7] == [False] * 7  # 4 x 2^14 is just too much
    # As high as it can be, and tried one higher after every three good steps.
    assert found[7:] == ([True] * 3 + [False]) * 8 + [True]
    assert scale.scale == 2.0**13


def test_growth_needs_good_steps_in_a_row() -> None:
    scale = LossScale(growth_steps=3, scale=8.0)
    for is_finite in (True, True, False, True, True):
        scale.update(is_finite=is_finite)
    assert scale.scale == 4.0
    scale.update(is_finite=True)
    assert scale.scale == 8.0


def test_a_scale_goes_on_as_it_was() -> None:
    one, other = LossScale(5, 2.0**33), LossScale(5, 1.0)
    for is_finite in (False, True, True, False, True):
        one.update(is_finite=is_finite)
    other.restore(one.state())
    assert other == one
    assert one.metrics() == {"loss_scale": 2.0**31, "skipped_steps": 2.0}


def test_only_fp16_scales_its_loss() -> None:
    for kind in ("fp32", "bf16", "fp8"):
        assert LossScale.of(Precision.parse({"kind": kind})) is None
    made = LossScale.of(Precision.parse({"kind": "fp16", "initial_scale": 4.0}))
    assert made == LossScale(2000, 4.0)


def test_gradients_are_summed_in_fp32() -> None:
    for kind, compute in (
        ("bf16", torch.bfloat16),
        ("fp16", torch.float16),
        ("fp8", torch.bfloat16),
    ):
        found = policy(Precision.parse({"kind": kind}))
        assert (found.param_dtype, found.reduce_dtype) == (compute, torch.float32)


def block() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_fp8_rounds_products_and_keeps_weights(recipe: str) -> None:
    plain, rounded = block(), block()
    settings = Precision.parse({"kind": "fp8", "recipe": recipe, "emulate": True})
    convert([rounded], settings, torch.device("cpu"))
    assert plain.state_dict().keys() == rounded.state_dict().keys()
    features = torch.randn(4, 32, generator=torch.Generator().manual_seed(1))
    wanted, found = plain(features), rounded(features)
    error = (found - wanted).norm() / wanted.norm()
    assert 1e-4 < error < 0.1  # e4m3 has three bits: 1/16 of a product at most
    found.square().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in rounded.parameters())


def test_what_cannot_be_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"kind": "fp8"}
    with pytest.raises(ConfigError, match="sim card has no fp8") as caught:
        convert([block()], Precision.parse(settings), torch.device("cpu"))
    assert caught.value.where == "precision.kind"
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    with pytest.raises(ConfigError, match=r"octad\[fp8\]"):
        convert([block()], Precision.parse({**settings, "emulate": True}), torch.device("cpu"))
    with pytest.raises(ConfigError, match="only fp8 can be emulated"):
        Precision.parse({"kind": "bf16", "emulate": True})
    with pytest.raises(ConfigError, match="initial_scale"):
        Precision.parse({"kind": "fp16", "initial_scale": 0.5})


def test_nothing_is_converted_when_off() -> None:
    plain = block()
    kinds = [type(m) for m in plain.modules()]
    convert([plain], Precision(), torch.device("cpu"))
    assert [type(m) for m in plain.modules()] == kinds
    assert policy(Precision()).param_dtype is None
    assert math.isinf(float(torch.tensor(1e5).half()))  # what the scale is for


def stage_of(**changes: Any) -> Any:
    model = {"kind": "decoder", "width": 64, "depth": 2, "heads": 4, "context": 32, "mlp_width": 96}
    raw = {
        "model": model,
        "optimizer": {"lr": 1e-3},
        "steps": 20,
        "sequence": 32,
        "global_batch": 8,
        **changes,
    }
    return pretrain.Settings.parse(raw, where="stage")


def spec_of(**axes: int) -> StageSpec:
    layout = Layout.parse({"dp_shard": 1, **axes})
    return StageSpec(name="stage", kind="pretrain", cards=layout.cards, layout=layout)


def test_sizes_that_fp8_cannot_multiply_are_refused_at_submit() -> None:
    settings = stage_of(precision={"kind": "fp8"})
    pretrain.check(spec_of(tp=2), settings)
    with pytest.raises(ConfigError, match=r"'up' has 96 features.* 16 x tp 4") as caught:
        pretrain.check(spec_of(tp=4), settings)
    assert caught.value.where == "stage.precision.kind"
    pretrain.check(spec_of(tp=4), stage_of(precision={"kind": "bf16"}))


def test_what_torch_cannot_compile_is_refused_at_submit() -> None:
    settings = stage_of(compile=True, activation_checkpointing="full")
    with pytest.raises(ConfigError, match="cannot compile") as caught:
        pretrain.check(spec_of(tp=2), settings)
    assert caught.value.where == "stage.activation_checkpointing"
    pretrain.check(spec_of(dp_shard=2), settings)
