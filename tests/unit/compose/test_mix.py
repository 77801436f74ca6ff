"""A mix of datasets, as a pipeline says it, is refused where it cannot be."""

import pytest

from octad.compose import compose_run
from octad.errors import ConfigError


def test_the_example_names_a_dataset_for_each_source() -> None:
    preprocess, pretrain = compose_run(["pipeline=mixed", "pretrain.mix.code=9"]).stages
    assert set(preprocess.settings["sources"]) == {"code", "prose"}
    assert pretrain.settings["mix"] == {"code": 9, "prose": 3}
    assert pretrain.needs["code"] == "preprocess.code"


@pytest.mark.parametrize(
    ("override", "where", "message"),
    [
        ("pretrain.mix.poems=1", "pretrain.needs.poems", "needs a dataset"),
        ("pretrain.mix={code: 1}", "pretrain.needs.prose", "takes no 'prose'"),
        ("pretrain.mix={}", "pretrain.needs.code", "takes no 'code'"),
        ("pretrain.mix.code=0", "pretrain.mix.code", "greater than 0"),
        ("pretrain.mix.code=0.12345", "pretrain.mix", "only exact in 20823 samples"),
        ("pretrain.mix.tokenizer=1", "pretrain.mix.tokenizer", "another input"),
        ("pretrain.packing=document", "pretrain.packing", "'stream' or 'documents'"),
        ("preprocess.sources={}", "preprocess", "nothing to read"),
        ("preprocess.sources.prose.kind=poems", "preprocess.sources.prose.kind", "poems"),
        ("preprocess.sources={tuning: {kind: stdlib}}", "preprocess", "something else"),
    ],
)
def test_what_cannot_be_mixed_is_named(override: str, where: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_run(["pipeline=mixed", override])
    assert caught.value.where == where
    assert message in str(caught.value)
