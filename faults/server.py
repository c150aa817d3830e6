"""A warm process that runs the command line in forked children, so that a try costs milliseconds instead of seconds.

Requests come as lines of JSON on standard input, answers go to standard output in the same way. The entry point is
the one that the source tree's `pyproject.toml` names.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

Main = Callable[[list[str]], Any]
_PATIENCE = 8
_TICKS = os.sysconf("SC_CLK_TCK")


def serve(entry: str, shim: str, warm_up: list[list[str]]) -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keep what the program prints apart from the answers
    main = _load(entry)
    for arguments in warm_up:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            _call(main, arguments)
    gc.collect()
    gc.freeze()  # children then copy fewer pages
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(_answer(main, shim, json.loads(line))), file=answers, flush=True)
    os._exit(0)  # libraries complain of what they hold when an interpreter ends in order


def _load(entry: str) -> Main:
    module, _, function = entry.partition(":")
    return getattr(importlib.import_module(module), function)


def _answer(main: Main, shim: str, request: dict[str, Any]) -> dict[str, Any]:
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _child(main, shim, request)
    answer: dict[str, Any] = {"timed_out": False, "too_big": False, "killed": False}
    limit, kill_after, kill_at, pause = request["seconds"], request.get("kill_after"), request.get("kill_at"), 0.001
    peak = 0
    while True:
        ended, status, usage = os.wait4(pid, os.WNOHANG)
        if ended:
            break
        spent, peak = time.monotonic() - started, max(peak, _resident(pid))
        answer["killed"] |= kill_after is not None and spent > kill_after
        answer["killed"] |= kill_at is not None and counted(request["control"]) >= kill_at
        # Other work on the machine must not make a command look slow, but one that waits for ever has to end, too.
        answer["timed_out"] |= _computed(pid) > limit or spent > _PATIENCE * limit
        answer["too_big"] |= peak > request["bytes"]
        if answer["killed"] and request.get("kill_alone"):
            os.kill(pid, signal.SIGKILL)
        elif answer["killed"] or answer["timed_out"] or answer["too_big"]:
            _kill_group(pid)
        time.sleep(pause)
        pause = min(0.02, 1.5 * pause) if kill_at is None else 0.001
    answer["left"] = _waits_for_group(pid, request.get("linger", 0))
    _kill_group(pid)  # whoever it left behind
    code = os.waitstatus_to_exitcode(status)
    return answer | {
        "code": code, "elapsed": time.monotonic() - started, "cpu": usage.ru_utime + usage.ru_stime,
        "peak": max(peak, usage.ru_maxrss * 1024),
    }  # fmt: skip


def counted(control: str) -> int:
    """Return how many file operations a command and its workers have counted, the first number of a control page."""
    with open(control, "rb") as file:
        return int.from_bytes(file.read(8), sys.byteorder)


def _waits_for_group(group: int, seconds: float) -> bool:
    """Return whether processes of a group are there after this long."""
    end = time.monotonic() + seconds
    while True:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        if time.monotonic() >= end:
            return True
        time.sleep(0.05)


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _computed(pid: int) -> float:
    """Return the seconds that a process has computed."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            times = file.read().rpartition(")")[2].split()[11:13]
        return sum(map(int, times)) / _TICKS
    except OSError:
        return 0.0


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _child(main: Main, shim: str, request: dict[str, Any]) -> None:
    """Carry out a request and end."""
    code = 70
    try:
        os.setpgid(0, 0)
        for number, name, flags in ((0, os.devnull, os.O_RDONLY), (1, "stdout", 0), (2, "stderr", 0)):
            path = name if number == 0 else request[name]
            handle = os.open(path, flags or os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
            os.dup2(handle, number)
            os.close(handle)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115 (until the end)
        if not request.get("many"):  # those start their workers as a shell's command does
            _spawn_warm()
        os.chdir(request["folder"])
        os.environ.update(request["environment"])
        if request.get("inject"):
            from faults.injections import inject

            inject(**request["inject"])
        if request.get("control"):
            os.environ["FAULTS_CONTROL"] = request["control"]
            os.environ["LD_PRELOAD"] = shim
            ctypes.CDLL(None).faults_arm(os.fsencode(request["control"]))
        if request.get("many"):
            code = _call_many(main, request["many"], request["folders"])
        elif request.get("repeat"):
            code = _repeat(main, request["arguments"], request["repeat"])
        else:
            code = _call(main, request["arguments"])
            atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _spawn_warm() -> None:
    """Let `multiprocessing` start its processes as copies of this one, which has imported everything already.

    They get only the descriptors that a new interpreter would get, and read their work from the same pipe.
    """
    from multiprocessing import util

    cold = util.spawnv_passfds

    def start(path: Any, arguments: list[str], descriptors: list[int]) -> int:
        if "--multiprocessing-fork" not in arguments:  # not a worker
            return cold(path, arguments, descriptors)
        if pid := os.fork():
            return pid
        code = 1
        try:
            for number in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, *descriptors}:
                with contextlib.suppress(OSError):  # the listing's own
                    os.close(number)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            sys.argv = ["-c", "--multiprocessing-fork"]
            exec(arguments[arguments.index("-c") + 1])
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    util.spawnv_passfds = start


def _call(main: Main, arguments: list[str]) -> int:
    """Run one command and return its exit code, as the interpreter would."""
    try:
        result = main(list(arguments))
        return result if isinstance(result, int) else 0
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1


def _call_many(main: Main, commands: list[list[str]], folders: list[str]) -> int:
    """Run commands one after the other, each in its folder; each leaves one line of JSON on standard output."""
    lines, start = os.fdopen(os.dup(1), "w"), os.getcwd()
    for arguments, folder in zip(commands, folders, strict=True):
        os.chdir(os.path.join(start, folder))
        out, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            code = _call(main, arguments)
        said = {"code": code, "stdout": out.getvalue()[-4000:], "stderr": errors.getvalue()[-4000:]}
        print(json.dumps(said), file=lines, flush=True)
    return 0


def _repeat(main: Main, arguments: list[str], times: int) -> int:
    """Run one command many times in one process, {} standing for the number, and print what is held after each."""
    lines = os.fdopen(os.dup(1), "w")
    for number in range(times):
        numbered = [argument.replace("{}", str(number)) for argument in arguments]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code = _call(main, numbered)
        held = {
            "code": code, "bytes": _resident(os.getpid()), "files": len(os.listdir("/proc/self/fd")),
            "threads": len(os.listdir("/proc/self/task")),
        }  # fmt: skip
        print(json.dumps(held), file=lines, flush=True)
    return 0


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
