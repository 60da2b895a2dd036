"""The table of normative statements is complete and up to date."""

from tests import conformance


def test_every_statement_has_a_test_or_a_reason():
    tests = conformance.collect()
    bare = [s for s in conformance.STATEMENTS if s not in tests and s not in conformance.WITHOUT_TEST]
    assert not bare, f"no test covers {', '.join(bare)}"


def test_no_reason_is_left_for_a_statement_that_has_a_test():
    tests = conformance.collect()
    stale = [s for s in conformance.WITHOUT_TEST if s in tests or s not in conformance.STATEMENTS]
    assert not stale, f"take {', '.join(stale)} out of WITHOUT_TEST"


def test_tests_name_only_statements_that_exist():
    known = {*conformance.STATEMENTS, *conformance.OF_CLIENTS}
    unknown = {s: tests for s, tests in conformance.collect().items() if s not in known}
    assert not unknown


def test_the_page_is_up_to_date():
    assert conformance.PAGE.read_text() == conformance.render(), "run `python -m tests.conformance`"
