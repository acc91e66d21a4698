"""What is recorded of the conditions of trainings, and when the sentences about them are true, and when not."""

from typing import Any

import pytest

from seriatim.comparison.assemble import add_conditions
from seriatim.comparison.comparison_page import report
from seriatim.comparison.findings import Caveats, conditions, same_conditions
from seriatim.comparison.results import Results
from seriatim.comparison.tables import summary_table

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
    assert Caveats(found).at_once == 1
    assert len(Caveats(found).kinds) == 1
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


def test_rows_at_the_same_time_are_told() -> None:
    together = results(recorded(0, 10), recorded(0, 10))
    assert Caveats(together).at_once == 2
    assert same_conditions(together.rows)
    assert conditions(together) in check_page(report(together.values)).text()


def test_rows_that_were_not_disturbed_equally_are_not_compared() -> None:
    assert not same_conditions(results(recorded(0, 10), recorded(0, 20)).rows)
    assert not Caveats(results(recorded(0, 10), recorded(0, 20))).has_equal_conditions


def test_rows_of_different_machines_are_told_with_their_machines() -> None:
    same = Caveats(results(recorded(0, 9), recorded(0, 9, host="b")))
    assert len(same.kinds) == 1
    differ = Caveats(results(recorded(0, 9), recorded(9, 18, processor="Xeon"), recorded(18, 27, threads=2)))
    assert len(differ.kinds) == 3
    assert differ.machines == "rnn with EPYC, 1 thread; lstm with Xeon, 1 thread; gru with EPYC, 2 threads"
    assert not differ.has_equal_conditions


@pytest.mark.parametrize(("processor", "compared"), [("EPYC", True), ("Xeon", False)])
def test_times_are_only_compared_under_equal_conditions(processor: str, compared: bool) -> None:
    found = results(recorded(0, 9), recorded(9, 18, processor=processor))
    for row, milliseconds in zip(found.values["rows"], (0.5, 0.1, 0.9), strict=True):
        row |= {"milliseconds_per_token": milliseconds, "milliseconds_spread": [milliseconds, milliseconds]}
    table = summary_table(Results(found.values))
    column = table.headings.index("ms per token")
    assert any(row[column].mark == "best" for row in table.rows) == compared


def test_the_start_of_a_process_is_no_other_program() -> None:
    """The second process starts while the first one trains, and imports for 3 seconds before it trains, too."""
    first = recorded(-3, 20, trained_from=0, used=[[-3, 0.0], [0, 3.0], [20, 23.0]])
    second = recorded(7, 30, trained_from=10, used=[[7, 0.0], [10, 3.0], [30, 43.0]])
    first["load"] |= {"seconds": 20.0, "other_cpu_seconds": 3.0 + 20.0}
    second["load"] |= {"seconds": 20.0, "other_cpu_seconds": 10.0}
    found = results(first, second)
    assert [run["load"]["rows_cpu_seconds"] for run in first_runs(found)] == [23.0, 10.0]
    assert Caveats(found).busy == {}


def test_the_trainings_of_the_comparison_are_no_other_programs() -> None:
    """Each uses one of two processors, and nothing else does."""
    pair = [recorded(0, 10), recorded(0, 10)]
    for run in pair:
        run["load"]["other_cpu_seconds"] = 10.5
    assert Caveats(results(*pair)).busy == {}
    for run in pair:
        run["load"]["other_cpu_seconds"] = 15.0
    found = results(*pair)
    assert Caveats(found).busy == {"rnn": pytest.approx(0.5), "lstm": pytest.approx(0.5)}
    assert Caveats(found).busy_most in conditions(found)
