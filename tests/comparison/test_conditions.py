"""What is recorded of the conditions of trainings, and when the sentences about them are true, and when not."""

from typing import Any

import pytest

from seriatim.comparison.assemble import add_conditions
from seriatim.comparison.comparison_page import report
from seriatim.comparison.results import Results
from seriatim.comparison.sentences import generating, training
from seriatim.comparison.verdict import (
    at_once,
    busy,
    conditions,
    finding,
    machines,
    same_conditions,
    unequal_minutes,
)

from ..pages.test_page import check_page
from .comparisons import made_up

LAYERS = ("ngram", "rnn", "lstm", "gru")


def recorded(began: float, ended: float, **machine: object) -> dict[str, Any]:
    """A training that used one processor from one second to another, with another program that used half of one."""
    seconds = ended - began
    machine = {"trained_from": began, "used": [[began, 0.0], [ended, seconds]], **machine}
    record = {"host": "a", "processor": "EPYC", "device": "cpu", "processors": 2, "threads": 1, **machine}
    load = {"seconds": seconds, "cpu_seconds": seconds, "other_cpu_seconds": 0.5 * seconds}
    return {"machine": {**record, "began": began, "ended": ended}, "load": load}


def results(*runs: dict[str, Any], trials: tuple[dict[str, Any], ...] = (), budget: str = "tokens") -> Results:
    """Results of an n-gram model and of one layer for each run."""
    values = made_up(LAYERS[: len(runs) + 1])
    values["budget"] = {budget: 2}
    for row, run in zip(values["rows"][1:], runs, strict=True):
        row["runs"][0] |= run
    add_conditions([run for row in values["rows"] for run in row["runs"]], list(trials))
    return Results(values)


def first_runs(found: Results) -> list[Any]:
    return [row.runs[0] for row in found.rows[1:]]


def test_trainings_one_after_another_are_alone() -> None:
    found = results(recorded(0, 10), recorded(10, 20))
    assert [(run["at_once"], run["beside"]) for run in first_runs(found)] == [(1, 0.0), (1, 0.0)]
    assert "host" not in first_runs(found)[0]["machine"]
    assert at_once(found) == machines(found) == unequal_minutes(found) == ""
    assert same_conditions(found.rows)


def test_what_other_programs_used_is_known_for_each_row() -> None:
    """A training that used one processor beside another one does not count as another program."""
    alone, together, unknown = recorded(0, 10), recorded(20, 30), recorded(40, 50)
    beside = recorded(20, 30)
    for run in (together, beside):
        run["load"]["other_cpu_seconds"] += 10.0
    unknown["load"]["other_cpu_seconds"] = None
    found = results(alone, together, beside)
    assert [row.others_processors for row in found.rows[1:]] == pytest.approx([0.5, 0.5, 0.5])
    assert results(unknown).rows[1].others_processors is None


def test_what_ran_at_the_same_time_is_counted_by_machine() -> None:
    found = results(recorded(0, 10), recorded(0, 10), recorded(0, 10, host="b"))
    assert [(run["at_once"], run["beside"]) for run in first_runs(found)] == [(2, 1.0), (2, 1.0), (1, 0.0)]
    assert [run["machine"]["host"] for run in first_runs(found)] == ["a", "a", "b"]
    assert [run["load"]["rows_cpu_seconds"] for run in first_runs(found)] == [10.0, 10.0, 0.0]


def test_an_overlap_of_a_moment_does_not_count_and_one_after_another_is_one_at_a_time() -> None:
    found = results(recorded(0, 100), recorded(99.5, 150), recorded(150, 200))
    assert [run["at_once"] for run in first_runs(found)] == [1, 1, 1]
    found = results(recorded(0, 100), recorded(0, 50), recorded(50, 100))
    assert [(run["at_once"], run["beside"]) for run in first_runs(found)] == [(2, 1.0), (2, 1.0), (2, 1.0)]


def test_trials_of_learning_rates_disturb_rows_and_keep_no_record() -> None:
    trial = {"learning_rate": 0.1, "value": 3.0, **recorded(5, 10)}
    found = results(recorded(0, 10), recorded(10, 20), trials=(trial,))
    assert [(run["at_once"], run["beside"]) for run in first_runs(found)] == [(2, 0.5), (1, 0.0)]
    assert trial == {"learning_rate": 0.1, "value": 3.0}


def test_rows_at_the_same_time_are_said() -> None:
    together = results(recorded(0, 10), recorded(0, 10))
    sentence = (
        "2 trainings ran at the same time on this machine, with 1 thread each; times and speeds are those beside "
        "another training."
    )
    assert at_once(together) == sentence
    assert same_conditions(together.rows)
    assert sentence in check_page(report(together.values)).text()
    three = at_once(results(*[recorded(0, 10, threads=threads) for threads in (1, 2, 2)]))
    assert three.startswith("3 trainings ran at the same time on this machine, with 1 to 2 threads each; times")
    assert three.endswith("those beside other trainings.")


def test_rows_that_were_not_disturbed_equally_are_said() -> None:
    text = at_once(results(recorded(0, 10), recorded(0, 20)))
    assert text.startswith("Up to 2 trainings ran")
    assert text.endswith("equally: on average 0.5 (lstm) to 1.0 (rnn) others ran at the same time.")


def test_other_machines_are_said() -> None:
    same = machines(results(recorded(0, 9), recorded(0, 9, host="b")))
    assert same == (
        "The rows were trained on 2 machines (a and b) with the same processor and number of threads: EPYC, 1 thread."
    )
    differ = results(recorded(0, 9), recorded(0, 9, host="b", processor="Xeon"), recorded(9, 18, threads=2))
    assert machines(differ) == (
        "The rows were trained on 2 machines (a and b), under different conditions: rnn with EPYC, 1 thread; lstm with "
        "Xeon, 1 thread; gru with EPYC, 2 threads. Times and speeds of rows can only be compared where these are equal."
    )
    threads = machines(results(recorded(0, 9), recorded(9, 18, threads=2)))
    assert threads.startswith("The rows were trained on this machine, under different conditions: rnn with EPYC, 1")


@pytest.mark.parametrize("other", [recorded(0, 9, processor="Xeon"), recorded(0, 30)])
def test_a_budget_in_minutes_is_called_unfair_where_the_conditions_differ(other: dict) -> None:
    assert "compare by tokens instead (--tokens)" in unequal_minutes(results(recorded(0, 9), other, budget="minutes"))
    assert unequal_minutes(results(recorded(0, 9), recorded(0, 9), budget="minutes")) == ""
    assert unequal_minutes(results(recorded(0, 9), recorded(0, 30), budget="tokens")) == ""


def test_speeds_are_only_ranked_under_equal_conditions() -> None:
    for processor, ranked in (("EPYC", True), ("Xeon", False)):
        found = results(recorded(0, 9), recorded(9, 18, processor=processor))
        texts = [tell(row, found) for row in found.rows[1:] for tell in (training, generating)]
        assert all(("fastest" in text) == ranked for text in texts)
        for row, milliseconds in zip(found.values["rows"][1:], (0.1, 0.9), strict=True):
            row |= {"milliseconds_per_token": milliseconds, "milliseconds_spread": [milliseconds, milliseconds]}
            row["metrics"] |= {"perplexity": 4.0 - milliseconds / 10}
        assert ("needs the least time" in finding(Results(found.values))) == ranked


def test_the_start_of_a_process_is_no_other_program() -> None:
    """The second process starts while the first one trains, and imports for 3 seconds before it trains, too."""
    first = recorded(-3, 20, trained_from=0, used=[[-3, 0.0], [0, 3.0], [20, 23.0]])
    second = recorded(7, 30, trained_from=10, used=[[7, 0.0], [10, 3.0], [30, 43.0]])
    first["load"] |= {"seconds": 20.0, "other_cpu_seconds": 3.0 + 20.0}
    second["load"] |= {"seconds": 20.0, "other_cpu_seconds": 10.0}
    found = results(first, second)
    assert [run["load"]["rows_cpu_seconds"] for run in first_runs(found)] == [23.0, 10.0]
    assert busy(found) == ""


def test_the_trainings_of_the_comparison_are_no_other_programs() -> None:
    """Each uses one of two processors, and nothing else does."""
    pair = [recorded(0, 10), recorded(0, 10)]
    for run in pair:
        run["load"]["other_cpu_seconds"] = 10.5
    assert busy(results(*pair)) == ""
    for run in pair:
        run["load"]["other_cpu_seconds"] = 15.0
    found = results(*pair)
    assert "other programs used up to 0.5 of 2 processors" in busy(found)
    assert conditions(found) == f"{at_once(found)} {busy(found)}"
