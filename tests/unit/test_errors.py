"""The error tree: one line each, an exit code each, and whole after every journey."""

import pickle

import pytest

from octad import errors
from octad.errors import ConfigError, OctadError


def tree(root: type[OctadError]) -> list[type[OctadError]]:
    return [root, *(e for child in root.__subclasses__() for e in tree(child))]


@pytest.mark.parametrize("kind", tree(OctadError))
def test_survives_pickling_and_the_wire(kind: type[OctadError]) -> None:
    error = kind("9 cards cannot be", where="pretrain.cards", hint="use 8 or 16")
    for copy in (pickle.loads(pickle.dumps(error)), OctadError.from_wire(error.to_wire())):
        assert type(copy) is kind
        assert str(copy) == str(error) == "pretrain.cards: 9 cards cannot be; use 8 or 16"


def test_an_unknown_kind_from_a_newer_server_is_still_an_error() -> None:
    error = OctadError.from_wire({"kind": "QuotaError", "what": "no quota left"})
    assert str(error) == "no quota left"


def test_placing_an_error_puts_the_outer_path_in_front() -> None:
    assert ConfigError("must be 1", where="tp").at("pretrain.layout").where == "pretrain.layout.tp"
    assert ConfigError("must be 1").at("pretrain").where == "pretrain"


def test_exit_codes_are_small_and_documented() -> None:
    for kind in tree(OctadError)[1:]:
        assert 2 <= kind.exit_code <= 63
        assert kind.__name__ in (errors.__doc__ or "")


def test_leaves_have_exit_codes_of_their_own() -> None:
    leaves = [kind for kind in tree(OctadError) if not kind.__subclasses__()]
    assert len({kind.exit_code for kind in leaves}) == len(leaves)
