"""The page about CSV lists the words that name columns, all of them and no other."""

from __future__ import annotations

import re

import pytest

from mgspmv.ingest.column_names import SOURCE_WORDS, TARGET_WORDS, WEIGHT_WORDS, find_role
from tests.support.pages import find_section, read_page

pytestmark = pytest.mark.docs

PAGE = read_page("docs/csv.md")


@pytest.mark.parametrize(
    ("role", "words"), [("source", SOURCE_WORDS), ("target", TARGET_WORDS), ("weight", WEIGHT_WORDS)]
)
def test_the_words_for_columns_are_those_of_the_rules(role, words):
    [row] = re.findall(rf"^\| {role} \|(.*)\|$", find_section(PAGE, "Columns"), re.MULTILINE)
    listed = re.findall(r"`([^`]+)`", row)
    assert len(listed) == len(set(listed))
    assert words <= set(listed)
    assert {find_role(word) for word in listed} == {(role, True)}
