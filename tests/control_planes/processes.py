"""The processes of the tests of control planes.

Each has its output in target/control_planes/NAME.log, and ends with the tests. A test waits for an event, for at most
PATIENCE seconds: a bound for a busy machine, not a measure.
"""

import atexit
import collections
import http.client
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LOGS = ROOT / "target/control_planes"
TOOLS = ROOT / ".tools/bin"
PATIENCE = 180

Reply = collections.namedtuple("Reply", "status headers body")


class Process:
    """A program that runs until `stop` or `kill`, or until the tests end."""

    def __init__(self, name, arguments, environment=None):
        self.name, self.arguments = name, [str(argument) for argument in arguments]
        self.environment = {**os.environ, **(environment or {})}
        self.process = None
        atexit.register(self.kill)
        self.start()

    def start(self):
        LOGS.mkdir(parents=True, exist_ok=True)
        with open(LOGS / f"{self.name}.log", "ab") as log:
            self.process = subprocess.Popen(self.arguments, env=self.environment, stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log)

    def is_running(self):
        return self.process.poll() is None

    def send(self, number):
        if self.is_running():
            self.process.send_signal(number)

    def freeze(self):
        """Stops all threads until `thaw`. The signal alone may take a while on a busy machine."""
        self.send(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def thaw(self):
        self.send(signal.SIGCONT)

    def kill(self):
        self.send(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        self.send(signal.SIGTERM)
        self.process.wait(PATIENCE)

    def restart(self):
        self.stop()
        self.start()

    def tail(self):
        text = (LOGS / f"{self.name}.log").read_text(errors="replace")
        return f"--- {self.name}\n{text[-4000:]}"


def folder(name):
    """An empty directory for the files of a test."""
    at = LOGS / name
    shutil.rmtree(at, ignore_errors=True)
    at.mkdir(parents=True)
    return at


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def until(condition, what, *processes):
    """Waits for a true result of `condition`, and returns it. A refused connection counts as false."""
    deadline = time.monotonic() + PATIENCE
    last = None
    while time.monotonic() < deadline:
        try:
            last = condition()
        except (OSError, http.client.HTTPException) as error:
            last = error
        else:
            if last:
                return last
        for process in processes:
            if not process.is_running():
                raise AssertionError(f"{process.name} ended while the test waited for {what}\n{process.tail()}")
        time.sleep(0.1)
    tails = "\n".join(process.tail() for process in processes)
    raise AssertionError(f"no {what} within {PATIENCE} s; last: {last!r}\n{tails}")


def get(port, path="/", headers=None, address="127.0.0.1"):
    """Sends a GET request to a port of this machine."""
    connection = http.client.HTTPConnection(address, port, timeout=PATIENCE)
    try:
        connection.request("GET", path, headers=headers or {})
        reply = connection.getresponse()
        return Reply(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())
    finally:
        connection.close()
