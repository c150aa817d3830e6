"""The help of dataclasses in Python."""

import pydoc
from dataclasses import dataclass, fields

import pytest

from looped.config import GROUPS, ModelConfig, TrainConfig
from looped.utils.field_docs import documents_fields, field_docs


@documents_fields
@dataclass
class Example:
    """An example."""

    first: int = 1
    """what comes
    first"""
    second: int = 2

    def method(self):
        """Not a field."""


def test_docstring_of_a_class_has_the_strings_under_its_fields():
    assert field_docs(Example) == {"first": "what comes first"}
    assert Example.__doc__ == "An example.\n\nAttributes:\n    first: what comes first"
    assert Example().__doc__ == Example.__doc__


def test_docstring_of_a_class_without_source_is_its_own():
    space: dict = {"documents_fields": documents_fields}
    exec('@documents_fields\nclass Made:\n    "Made."\n    one: int = 1\n    "explained"', space)
    assert space["Made"].__doc__ == "Made."


@pytest.mark.parametrize("config", [ModelConfig, *GROUPS.values()])
def test_help_of_a_config_explains_every_field(config):
    shown = pydoc.plain(pydoc.render_doc(config))
    for field in fields(config):
        text = field_docs(config)[field.name]
        assert f"{field.name}: {text}"[:40] in shown


def test_help_of_the_training_settings_explains_all_but_the_groups():
    assert field_docs(TrainConfig).keys() == {field.name for field in fields(TrainConfig)} - GROUPS.keys()
