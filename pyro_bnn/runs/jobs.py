"""
Tasks side by side: functions called in processes of their own on this machine, one thread each, or on a Ray cluster.

The one runner of members, chains and seeds (`pyro-bnn train --jobs`), of sweeps and of studies. A task is a function of
a module with plain arguments; what it is to keep it writes into folders, by the rules of those. A process is used for
one task after another. One that dies (killed, out of memory) is a failure of the task that it had, which says so and
may be tried again in a new process; the other tasks do not notice. If this process ends, in whatever way, those that it
started end, too.

On a Ray cluster of several machines the folders that tasks write to have to be seen by all of them, as Ray Tune asks
for as well.
"""

import importlib.util
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, final

from pyro_bnn.common.errors import summary
from pyro_bnn.common.limits import limits, limits_now
from pyro_bnn.registry import trusted_packages, trusting

__all__ = ["Done", "Task", "WorkerDied", "check_jobs", "environment", "ray_is_there", "side_by_side", "started_ray"]

_OBJECT_STORE = 80 * 2**20
"""Bytes of a local cluster's object store: results here are names and numbers. Ray's own least is 75 MB."""


class WorkerDied(RuntimeError):
    """A process ended without an answer."""


@final
@dataclass(frozen=True)
class Task:
    """
    A call of a function in another process.

    :param name: what messages call it, such as "member-3".
    :param function: one that another process finds under its name in its module.
    :param arguments: by name; plain data.
    """

    name: str
    function: Callable[..., Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)


@final
@dataclass(frozen=True)
class Done:
    """A task and what came of it: a value, or the error that ended it."""

    task: Task
    value: Any = None
    error: BaseException | None = None

    def result(self) -> Any:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value


def check_jobs(jobs: int) -> None:
    """Refuse what is no number of processes."""
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise ValueError(f"jobs={jobs} is not a number of processes: pass at least 1")


def ray_is_there() -> bool:
    """Whether Ray Tune is installed."""
    return importlib.util.find_spec("ray") is not None and importlib.util.find_spec("ray.tune") is not None


def side_by_side(
    tasks: Iterable[Task], jobs: int = 1, *, ray: str | None = None, retries: int = 0, apart: bool = False
) -> Iterator[Done]:
    """
    Call every task and yield each as it is done, in the order in which they end.

    :param jobs: processes at a time; a single one is this one itself.
    :param ray: "local" for a Ray cluster of `jobs` processors on this machine, or the address of one that runs.
    :param retries: how often a task whose process died is tried again.
    :param apart: a single process is another one, too.

    >>> tasks = [Task(f"task-{i}", dict, {"number": i}) for i in range(3)]
    >>> [done.result()["number"] for done in side_by_side(tasks)]
    [0, 1, 2]
    """
    check_jobs(jobs)
    wanted = list(tasks)
    if ray is not None:
        yield from _on_ray(wanted, jobs, ray, retries)
    elif (jobs == 1 or len(wanted) < 2) and not apart:
        for task in wanted:
            yield _called(task)
    else:
        yield from _in_processes(wanted, min(jobs, len(wanted)), retries)


def _called(task: Task) -> Done:
    try:
        return Done(task, task.function(**task.arguments))
    except Exception as error:
        return Done(task, error=error)


# -- what a task finds in another process --------------------------------------------------------------------------


def _surroundings() -> dict[str, Any]:
    """Return what is in force here beside arguments: limits, and packages that are trusted."""
    return {"limits": asdict(limits_now()), "trusted": sorted(trusted_packages())}


def _answer(function: Callable[..., Any], arguments: Mapping[str, Any], around: Mapping[str, Any]) -> tuple[Any, ...]:
    """Call a function in this process, with one thread; return its value, or its error and where it came from."""
    import torch

    torch.set_num_threads(1)
    try:
        with limits(**around["limits"]), trusting(*around["trusted"]):
            return True, function(**arguments)
    except BaseException as error:
        where = traceback.format_exc()
        try:
            ForkingPickler.loads(ForkingPickler.dumps(error))
        except Exception:  # of a class that cannot be sent
            return False, RuntimeError(summary(error)), where
        return False, error, where


class _Elsewhere(Exception):
    """Where an error came from in another process, as its cause."""


def _done(task: Task, answer: tuple[Any, ...]) -> Done:
    if answer[0]:
        return Done(task, answer[1])
    _, error, where = answer
    error.__cause__ = _Elsewhere(f"in the process of {task.name}:\n{where}")
    return Done(task, error=error)


@contextmanager
def environment(**variables: str | None) -> Iterator[None]:
    """Set variables of the environment for a while; None leaves one as it is."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update({name: value for name, value in variables.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


# -- processes -----------------------------------------------------------------------------------------------------


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(pipe: Connection, around: Mapping[str, Any]) -> None:
    """Answer one call after another, until there are no more or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the parent's, which ends its processes
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from pyro_bnn.common.memory import keep_freed_memory

    keep_freed_memory()
    while True:
        try:
            call = pipe.recv()
        except EOFError:
            return
        function, arguments = call
        pipe.send(_answer(function, arguments, around))


@final
class _Worker:
    """A process, the way to it, and the task that it has."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_work, args=(theirs, _surroundings()), daemon=True)
        with environment(OMP_NUM_THREADS="1"):
            self.process.start()
        theirs.close()
        self.task: Task | None = None

    def begin(self, task: Task) -> None:
        """Hand over a task; of a process that is gone the end is noticed next."""
        self.task = task
        with suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send((task.function, dict(task.arguments)))

    def answer(self) -> tuple[Any, ...] | None:
        """Return the answer that is there; None if the process died."""
        with suppress(EOFError, ConnectionResetError):
            if self.pipe.poll():
                answer: tuple[Any, ...] = self.pipe.recv()
                return answer
        return None

    def end(self) -> int | None:
        """End the process and return its exit code."""
        self.pipe.close()
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        return self.process.exitcode


def _in_processes(tasks: Sequence[Task], jobs: int, retries: int) -> Iterator[Done]:
    waiting, deaths = deque(tasks), dict.fromkeys(map(id, tasks), 0)
    idle: list[_Worker] = []
    busy: list[_Worker] = []
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                while idle and not idle[-1].process.is_alive():
                    idle.pop().end()
                worker = idle.pop() if idle else _Worker()
                busy.append(worker)
                worker.begin(waiting.popleft())
            ready = set(wait([part for worker in busy for part in (worker.pipe, worker.process.sentinel)]))
            for worker in [w for w in busy if w.pipe in ready or w.process.sentinel in ready]:
                busy.remove(worker)
                task, answer = worker.task, worker.answer()
                assert task is not None
                if answer is not None:
                    idle.append(worker)
                    yield _done(task, answer)
                    continue
                how = _how_it_ended(worker.end())
                deaths[id(task)] += 1
                if deaths[id(task)] <= retries:
                    waiting.appendleft(task)
                else:
                    yield Done(task, error=_died(task, how, deaths[id(task)]))
    finally:
        for worker in [*busy, *idle]:
            worker.end()


def _how_it_ended(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in {s.value for s in signal.Signals} else f"signal {-code}"
        return f"killed by {name}" + (", as the system does when memory is out" if name == "SIGKILL" else "")
    return f"exit code {code}; a script that uses jobs= begins below `if __name__ == '__main__':`"


def _died(task: Task, how: str, times: int) -> WorkerDied:
    often = "" if times == 1 else f", the last of {times} that were tried"
    return WorkerDied(f"the process of {task.name} ended without an answer ({how}{often})")


# -- Ray -----------------------------------------------------------------------------------------------------------


@contextmanager
def started_ray(address: str, jobs: int | None) -> Iterator[Any]:
    """
    Connect to a Ray cluster, or start one on this machine; yield the module, and disconnect.

    :param address: "local" starts one of `jobs` processors, which ends with this process.
    """
    if not ray_is_there():
        raise ValueError(f"ray={address!r} needs Ray: pip install 'pyro-bnn[ray]', or leave it out (--ray none)")
    quiet = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AIR_NEW_OUTPUT": "0",
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
        "RAY_worker_niceness": "0",  # as the processes of a sweep without Ray
    }
    settings = {name: None if name in os.environ else value for name, value in quiet.items()}
    if address == "local":  # whose processes find what this one finds
        settings["PYTHONPATH"] = os.pathsep.join(place or os.getcwd() for place in sys.path)
    with environment(**settings):
        import ray

        if ray.is_initialized():  # the caller's own
            yield ray
            return
        said: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        usual = signal.getsignal(signal.SIGTERM)  # which Ray takes
        if address == "local":
            own: dict[str, Any] = {"num_cpus": jobs, "include_dashboard": False, "object_store_memory": _OBJECT_STORE}
            ray.init(address="local", **own, **said)
        else:
            try:
                ray.init(address=address, **said)
            except ConnectionError as error:
                raise ValueError(
                    f"no Ray cluster answers at {address!r} ({summary(error)}): start one with `ray start --head`, or "
                    f"use --ray local"
                ) from None
        try:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, usual)
            yield ray
        finally:
            ray.shutdown()


def _on_ray(tasks: Sequence[Task], jobs: int, address: str, retries: int) -> Iterator[Done]:
    with started_ray(address, jobs) as ray:
        call = ray.remote(num_cpus=1, max_retries=0)(_answer)
        around, deaths = _surroundings(), dict.fromkeys(map(id, tasks), 0)
        running = {call.remote(task.function, dict(task.arguments), around): task for task in tasks}
        try:
            while running:
                (ended, *_), _ = ray.wait(list(running), num_returns=1)
                task = running.pop(ended)
                try:
                    yield _done(task, ray.get(ended))
                except ray.exceptions.RayError as error:
                    deaths[id(task)] += 1
                    if deaths[id(task)] <= retries:
                        running[call.remote(task.function, dict(task.arguments), around)] = task
                    else:
                        why = str(error).strip().rpartition("\n")[2][:200]  # of a traceback what it ends with
                        yield Done(task, error=_died(task, why, deaths[id(task)]))
        finally:
            for left in running:
                ray.cancel(left, force=True)
