"""Settings are read strictly, and the reference page lists them all."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxplatform import environment
from mlxplatform.environment import PREFIX, SETTINGS, BadSetting, read

DOCS = Path(__file__).resolve().parents[2] / "docs" / "reference" / "settings.md"


def test_the_reference_page_is_what_the_table_says() -> None:
    assert DOCS.read_text() == environment.markdown(), "run: python -m mlxplatform.environment > docs/reference/settings.md"


def test_defaults_parse() -> None:
    settings = read({})
    assert settings.port == 8000
    assert settings.home.is_absolute()
    assert settings.redis_url == ""


def test_the_long_name_wins_over_the_short_form() -> None:
    assert read({"PORT": "9000"}).port == 9000
    assert read({"PORT": "9000", "MLXPLATFORM_PORT": "9001"}).port == 9001
    assert read({"MODEL": "a"}).model == "a"


def test_only_port_and_model_have_a_short_form() -> None:
    assert {setting.short for setting in SETTINGS if setting.short} == {"PORT", "MODEL"}


def test_an_unknown_name_is_refused_by_name() -> None:
    with pytest.raises(BadSetting, match="MLXPLATFORM_PROT is not a setting"):
        read({"MLXPLATFORM_PROT": "1"})


@given(name=st.sampled_from([setting.name for setting in SETTINGS]), raw=st.text(max_size=20))
def test_any_text_is_either_used_or_refused_in_one_sentence(name: str, raw: str) -> None:
    try:
        read({PREFIX + name: raw})
    except BadSetting as error:
        assert str(error).startswith(PREFIX + name)
        assert "\n" not in str(error)
