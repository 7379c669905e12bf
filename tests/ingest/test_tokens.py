"""Rules for tokens and delimiters as tables: what is given, and what it is taken for."""

from __future__ import annotations

import pytest

from mgspmv.ingest.tokens import (
    Undecided,
    choose_delimiter,
    choose_list_delimiter,
    has_decimal_comma,
    is_integer,
    is_number,
    is_plain_integer,
    split_fields,
)


@pytest.mark.parametrize(
    ("token", "integer", "plain", "number"),
    [
        ("7", True, True, True),
        ("-7", True, True, True),
        ("0", True, True, True),
        ("007", True, False, True),
        ("+7", True, False, True),
        ("-0", True, True, True),
        ("1.5", False, False, True),
        (".5", False, False, True),
        ("1e3", False, False, True),
        ("1.5D+05", False, False, True),
        ("nan", False, False, True),
        ("alice", False, False, False),
        ("", False, False, False),
        ("1,5", False, False, False),
    ],
)
def test_numbers_are_told_by_their_spelling(token, integer, plain, number):
    assert (is_integer(token), is_plain_integer(token), is_number(token)) == (integer, plain, number)


def test_a_decimal_comma_is_told():
    assert has_decimal_comma("0,5")
    assert not has_decimal_comma("0.5")


@pytest.mark.parametrize(
    ("line", "delimiter", "fields"),
    [
        ("1 2", " ", ["1", "2"]),
        ("  1 \t 2  ", " ", ["1", "2"]),
        ('"New York" "Los Angeles"', " ", ["New York", "Los Angeles"]),
        ('5"disk a', " ", ['5"disk', "a"]),
        ('"say ""hi""" b', " ", ['say "hi"', "b"]),
        ("a, b ,c", ",", ["a", "b", "c"]),
        ('"Washington, DC",New York', ",", ["Washington, DC", "New York"]),
        ('"a" , "b"', ",", ["a", "b"]),
        ('" a","b "', ",", [" a", "b "]),
        ('"a",', ",", ["a", ""]),
        (',"a"', ",", ["", "a"]),
        ('"",b', ",", ["", "b"]),
        ('5"disk,"say ""hi"""', ",", ['5"disk', 'say "hi"']),
        ('"a|b"|c', "|", ["a|b", "c"]),
        ('\t"a"\tb', "\t", ["", "a", "b"]),
        ('"a"', ",", ["a"]),
        ("Smith, J\tDoe", "\t", ["Smith, J", "Doe"]),
        ("a;;b", ";", ["a", "", "b"]),
    ],
)
def test_lines_are_split_at_a_delimiter(line, delimiter, fields):
    assert split_fields(line, delimiter) == fields


@pytest.mark.parametrize(("line", "delimiter"), [('"a b', " "), ('"a,b', ","), ('"a"b,c', ","), ('"a" "b",c', ",")])
def test_an_open_quotation_is_an_error(line, delimiter):
    with pytest.raises(Undecided, match="quoted"):
        split_fields(line, delimiter)


@pytest.mark.parametrize(
    ("lines", "delimiter"),
    [
        (["1 2", "2 3"], " "),
        (["1\t2", "2\t3"], " "),
        (["1\t2 5", "2\t3 5"], "\t"),
        (["1\t2 \t5", " 2\t3\t5"], " "),
        (["1\t\t2", "2\t\t3"], "\t"),
        (["a\tb", "b\tc"], "\t"),
        (["Smith, J\tDoe", "Brown, K\tDoe"], "\t"),
        (["New York\tParis", "Paris\tRome"], "\t"),
        (["source\ttarget", "1\t2"], " "),
        (["1|2", "2|3"], "|"),
        (["a,x|b", "b,y|c"], "|"),
        (["1;2;0,5", "2;3;0,25"], ";"),
        (["1,2", "2,3"], ","),
        (["1, 2", "2, 3"], ","),
        (['"a;b",c', "d,e"], ","),
        (["Smith,J Doe", "Brown Doe"], " "),
        (["a b", "c,d e"], " "),
        (["1,2", "2,3", "3,4,5"], ","),
        (['1 "0\t1', "1\t2"], "\t"),
        (['"1"\t"2"', '"2"\t"3"'], "\t"),
        ([], " "),
        (["alone"], " "),
    ],
)
def test_the_delimiter_is_the_first_that_all_lines_share(lines, delimiter):
    assert choose_delimiter(lines) == delimiter


@pytest.mark.parametrize(
    ("lines", "are_integers", "delimiter"),
    [
        (["New York", "Los Angeles"], False, None),
        (["alice", "bob"], False, None),
        (["1", "2"], True, None),
        (["1 5", "2 6"], True, " "),
        (["1,x", "2,y"], True, ","),
        (["a\tx", "b\ty"], False, "\t"),
        (["Smith, J", "alice"], False, None),
    ],
)
def test_the_delimiter_of_a_list_of_vertices(lines, are_integers, delimiter):
    assert choose_list_delimiter(lines, are_integers=are_integers) == delimiter
