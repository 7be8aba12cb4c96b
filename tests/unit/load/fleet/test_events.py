"""Virtual time: shared cores, queues, and what a failing process does to the work in it."""

from __future__ import annotations

from kb_load.fleet.events import (
    CallFailed,
    Down,
    Machine,
    Process,
    Simulation,
    Steps,
    Together,
    Wait,
    Work,
)


class Ends:
    """When each of several requests ended, and how."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.at: dict[str, float] = {}
        self.errors: dict[str, CallFailed | None] = {}

    def start(self, name: str, *steps: Work | Wait | Together) -> None:
        def ended(error: CallFailed | None) -> None:
            self.at[name], self.errors[name] = round(self.simulation.now, 9), error

        self.simulation.start(through(*steps), ended)


def through(*steps: Work | Wait | Together) -> Steps:
    yield from steps


def test_threads_share_the_cores_evenly_and_one_alone_has_its_own() -> None:
    """Three seconds of work on two cores: of 1, 1 and 2 s, all begin at two thirds of a core each."""
    simulation = Simulation()
    ends, machine = Ends(simulation), Machine(simulation, 2)
    for name, seconds in (("a", 1), ("b", 1), ("c", 2)):
        ends.start(name, Work(Process(machine), seconds))
    simulation.run()
    assert ends.at == {"a": 1.5, "b": 1.5, "c": 2.5}
    assert round(machine.busy_seconds, 9) == 4


def test_a_process_works_with_its_threads_and_the_others_wait_in_order() -> None:
    simulation = Simulation()
    ends, machine = Ends(simulation), Machine(simulation, 8)
    process = Process(machine, threads=2)
    for name in "abcd":
        ends.start(name, Work(process, 1))
    simulation.run()
    assert ends.at == {"a": 1, "b": 1, "c": 2, "d": 2}


def test_what_comes_together_ends_with_the_slowest_and_fails_with_one() -> None:
    simulation = Simulation()
    machine = Machine(simulation, 8)
    ends, down = Ends(simulation), Process(machine, is_up=False)
    parts = [through(Wait(1)), through(Work(Process(machine), 3))]
    ends.start("well", Together(parts), Wait(1))
    ends.start("ill", Together([through(Wait(2)), through(Work(down, 1))]))
    ends.start("none", Together([]))
    simulation.run()
    assert ends.at == {"well": 4, "ill": 2, "none": 0}
    assert isinstance(ends.errors["ill"], Down)


def test_a_process_that_fails_loses_what_it_had_and_comes_back_empty() -> None:
    simulation = Simulation()
    machine = Machine(simulation, 1)
    ends, failing, other = Ends(simulation), Process(machine), Process(machine)
    ends.start("worked on", Work(failing, 2))
    ends.start("waiting", Work(failing, 2))
    ends.start("elsewhere", Work(other, 2))
    ends.start("later", Wait(5), Work(failing, 1))
    simulation.after(1, lambda: failing.fail(3))
    simulation.run()
    assert ends.at == {"worked on": 1, "waiting": 1, "elsewhere": 2.5, "later": 6}
    assert {name for name, error in ends.errors.items() if error} == {"worked on", "waiting"}


def test_time_stands_where_it_was_asked_to() -> None:
    simulation, happened = Simulation(), list[float]()
    for seconds in (2, 1, 3):
        simulation.after(seconds, lambda: happened.append(simulation.now))
    simulation.run(until=2)
    assert happened == [1, 2]
    simulation.run()
    assert happened == [1, 2, 3]
