"""What every executor promises, real or simulated."""

import signal

import pytest

from fairlead.ports.faults import TemporaryFault
from fairlead.sim.executor import Behaviour
from tests.executor.worlds import World, exit_of

FOREVER = Behaviour(duration_ms=None)


def output(world: World) -> str:
    """What the newest job of a run wrote."""
    return "".join(part.read_text() for part in world.executor.log_parts("lab/a"))


def test_a_job_runs_and_its_exit_and_output_are_kept(world: World) -> None:
    """An exit code other than 0 arrives as it is, with no signal and no loss."""
    world.executor.start(world.job("p1", Behaviour(code=3, output="hello"), run="lab/a"))
    ended = exit_of(world, "p1")
    assert (ended.run, ended.code, ended.signal, ended.lost) == ("lab/a", 3, None, False)
    assert not ended.succeeded
    assert ended.reason is None
    assert output(world) == "hello"
    assert world.executor.log_parts("lab/other") == []


def test_a_signal_is_not_an_exit_code(world: World) -> None:
    """A command that dies of a signal says which."""
    world.executor.start(world.job("p1", Behaviour(signal=int(signal.SIGSEGV))))
    ended = exit_of(world, "p1")
    assert (ended.code, ended.signal) == (None, signal.SIGSEGV)


def test_a_command_that_is_not_there_is_an_exit_with_a_reason(world: World) -> None:
    """Not an exception, not a hang."""
    why = "command not found: fairlead-no-such-command"
    world.executor.start(world.job("p1", Behaviour(code=127, cannot_start=why)))
    ended = exit_of(world, "p1")
    assert (ended.code, ended.reason) == (127, why)


def test_exits_are_delivered_until_acknowledged(world: World) -> None:
    """Also to the next control plane; afterwards the id stays taken and the output stays."""
    job = world.job("p1", Behaviour(output="once"), run="lab/a")
    world.executor.start(job)
    ended = exit_of(world, "p1")
    world.reopen()
    assert world.executor.poll() == [ended]
    world.executor.acknowledge([ended])
    world.executor.acknowledge([ended])
    world.reopen()
    assert world.executor.poll() == []
    world.executor.start(job)
    assert world.executor.running() == set()
    assert world.executor.poll() == []
    assert output(world) == "once"


def test_starting_an_id_twice_is_starting_it_once(world: World) -> None:
    """While it runs, and after it ended."""
    job = world.job("p1", Behaviour(duration_ms=100, output="x"), run="lab/a")
    world.executor.start(job)
    world.executor.start(job)
    assert world.executor.running() == {"p1"}
    exit_of(world, "p1")
    world.executor.start(job)
    assert len(world.executor.poll()) == 1
    assert output(world) == "x"


def test_a_run_is_never_running_twice(world: World) -> None:
    """Another id for the same run waits until the first one ended."""
    world.executor.start(world.job("p1", FOREVER, run="lab/a"))
    again = world.job("p2", Behaviour(output="second"), run="lab/a")
    with pytest.raises(TemporaryFault, match="still running"):
        world.executor.start(again)
    world.executor.stop("lab/a", 5_000, decision="p9")
    exit_of(world, "p1")
    world.executor.start(again)
    assert exit_of(world, "p2").succeeded
    assert output(world) == "second"


def test_stop_asks_first(world: World) -> None:
    """SIGTERM ends what listens to it, long before the grace is over."""
    world.executor.start(world.job("p1", FOREVER, run="lab/a"))
    world.executor.stop("lab/a", 3_600_000, decision="p9")
    assert exit_of(world, "p1").signal == signal.SIGTERM
    world.executor.stop("lab/a", 0, decision="p9")
    world.executor.stop("lab/unknown", 0, decision="p9")


def test_stop_ends_what_does_not_listen(world: World) -> None:
    """SIGKILL after the grace; the exit says so. A second stop may shorten the grace."""
    deaf = Behaviour(duration_ms=None, checkpoint_ms=None, output="ready")
    world.executor.start(world.job("p1", deaf, run="lab/a"))

    def ready() -> bool:
        return output(world) == "ready"

    world.until(ready, "the command ignores SIGTERM")
    world.executor.stop("lab/a", 3_600_000, decision="p9")
    world.pass_ms(100)
    assert world.executor.running() == {"p1"}
    world.executor.stop("lab/a", 50, decision="p9")
    assert exit_of(world, "p1").signal == signal.SIGKILL


def test_jobs_outlive_the_executor(world: World) -> None:
    """A new object knows what runs, and can stop it."""
    world.executor.start(world.job("p1", FOREVER, run="lab/a"))
    world.executor.start(world.job("p2", Behaviour(duration_ms=200, code=7), run="lab/b"))
    world.reopen()
    assert "p1" in world.executor.running()
    assert exit_of(world, "p2").code == 7
    world.reopen()
    world.executor.stop("lab/a", 5_000, decision="p9")
    assert exit_of(world, "p1").signal == signal.SIGTERM
    assert {each.job for each in world.executor.poll()} == {"p1", "p2"}


def test_a_paused_run_stands_still_and_can_be_stopped(world: World) -> None:
    """Pause and resume may be repeated; a stop does not wait for a resume."""
    world.executor.start(world.job("p1", Behaviour(duration_ms=1_500), run="lab/a"))
    world.executor.pause("lab/a", decision="p9")
    world.executor.pause("lab/a", decision="p9")
    world.executor.start(world.job("p2", FOREVER, run="lab/b"))
    world.executor.pause("lab/b", decision="p9")
    world.pass_ms(2_000)
    assert world.executor.running() == {"p1", "p2"}
    world.executor.resume("lab/a", decision="p9")
    world.executor.resume("lab/a", decision="p9")
    assert exit_of(world, "p1").succeeded
    world.executor.stop("lab/b", 5_000, decision="p9")
    assert exit_of(world, "p2").signal == signal.SIGTERM
