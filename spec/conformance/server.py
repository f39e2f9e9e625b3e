"""The server under test: a command that is started for each scenario, or a server that already runs."""

import http.client
import itertools
import os
import pathlib
import random
import signal
import socket
import subprocess
import tempfile
import time
import urllib.parse

import grpc

START_SECONDS = 30
HEALTHY_SECONDS = 3
ATTEMPTS = 3
FIRST_PORT, PORTS = 20_000, 12_000
NEXT_PORT = itertools.count(random.randrange(PORTS))


class NotStarted(Exception):
    pass


def free_ports(count):
    """Different ports at each call, below those that the system gives to others.

    A server may share a port with another one without an error (SO_REUSEPORT), so no two scenarios may have the same.
    """
    ports = []
    while len(ports) < count:
        port = FIRST_PORT + next(NEXT_PORT) % PORTS
        try:
            socket.create_server(("127.0.0.1", port)).close()
            ports.append(port)
        except OSError:
            continue
    return ports


class Files:
    """The configuration files. Each is written elsewhere and moved into `limits` by an atomic rename."""

    def __init__(self, limits, beside):
        self.limits, self.beside, self.placed = pathlib.Path(limits), pathlib.Path(beside), set()

    def write(self, name, content):
        target = self.limits / name
        target.parent.mkdir(parents=True, exist_ok=True)
        prepared = self.beside / ".sluicegate-conformance"
        prepared.write_bytes(content)
        os.replace(prepared, target)
        self.placed.add(name)

    def delete(self, name):
        (self.limits / name).unlink()
        self.placed.discard(name)
        for folder in (self.limits / name).parents:
            if folder == self.limits or any(folder.iterdir()):
                break
            folder.rmdir()

    def replace_all(self, files):
        for name in sorted(self.placed):
            self.delete(name)
        for name, content in files.items():
            self.write(name, content)


class Started:
    """A command, started by the shell in its own process group, which ends with the scenario."""

    def __init__(self, options, scenario, files, extra):
        self.folder = tempfile.TemporaryDirectory(prefix="conformance-")
        root = pathlib.Path(self.folder.name)
        self.files, self.process = Files(root / "limits", root), None
        self.files.limits.mkdir()
        self.files.replace_all(files)
        try:
            self.start_repeatedly(options.command, scenario["env"] | extra)
        except BaseException:
            self.close()
            raise

    def start_repeatedly(self, command, settings):
        for attempt in range(ATTEMPTS):
            try:
                return self.start(command, settings)
            except NotStarted:
                if self.is_alive() or attempt == ATTEMPTS - 1:
                    raise
                self.stop()

    def start(self, command, settings):
        ports = free_ports(4)
        grpc_port, http_port, debug_port, metrics_port = map(str, ports)
        own = {
            "GRPC_PORT": grpc_port, "PORT": http_port, "DEBUG_PORT": debug_port,
            "PROMETHEUS_ADDR": f"127.0.0.1:{metrics_port}", "RUNTIME_ROOT": self.folder.name,
            "RUNTIME_SUBDIRECTORY": "limits", "RUNTIME_APPDIRECTORY": "", "RUNTIME_WATCH_ROOT": "false",
        }
        self.grpc, self.http, self.debug, self.metrics = (f"127.0.0.1:{port}" for port in ports)
        with open(f"{self.folder.name}/log", "wb") as log:
            self.process = subprocess.Popen(
                command, shell=True, env=os.environ | own | settings, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        self.wait_until_ready()

    def wait_until_ready(self):
        """Waits until the gRPC port accepts connections, and then a short time for a healthy answer over HTTP."""
        end = time.monotonic() + START_SECONDS
        while not can_connect(self.grpc):
            if not self.is_alive() or end < time.monotonic():
                raise NotStarted(f"the gRPC port does not open; the log ends with:\n{self.log()}")
            time.sleep(0.02)
        end = time.monotonic() + HEALTHY_SECONDS
        while time.monotonic() < end and not is_healthy(self.http):
            time.sleep(0.02)

    def is_alive(self):
        return self.process.poll() is None

    def log(self):
        return pathlib.Path(self.folder.name, "log").read_text(errors="replace")[-600:]

    def stop(self):
        if self.process:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait()

    def close(self):
        self.stop()
        self.folder.cleanup()


class Running:
    """A server that runs already and reloads its files. `--reset` empties its counters before each scenario."""

    def __init__(self, options):
        self.options = options
        self.grpc, self.http, self.debug, self.metrics = options.address, options.http, options.debug, None
        self.files = Files(options.config_dir, pathlib.Path(options.config_dir).resolve().parent)
        if any(self.files.limits.iterdir()):
            raise NotStarted(f"{options.config_dir} must be empty: the files of the scenarios replace each other there")

    def begin(self, files):
        self.files.replace_all(files)
        time.sleep(self.options.reload_wait)
        if self.options.reset:
            subprocess.run(self.options.reset, shell=True, check=True, timeout=START_SECONDS)

    def is_alive(self):
        return can_connect(self.grpc)

    def close(self):
        self.files.replace_all({})


def can_connect(address):
    try:
        socket.create_connection(split(address), 1).close()
        return True
    except OSError:
        return False


def is_healthy(address):
    try:
        return call_http(address, "GET", "/healthcheck", None, 1)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def split(address):
    parts = urllib.parse.urlsplit(f"//{address}")
    return parts.hostname, parts.port


def call_http(address, method, path, body, seconds):
    """Returns the status, the content type and the body."""
    connection = http.client.HTTPConnection(*split(address), timeout=seconds)
    try:
        connection.request(method, path, body)
        reply = connection.getresponse()
        return reply.status, reply.headers.get("content-type"), reply.read()
    finally:
        connection.close()


def call_grpc(channel, method, message, seconds):
    """Returns the bytes of the reply, or the number of the error code."""
    try:
        return channel.unary_unary(method)(message, timeout=seconds)
    except grpc.RpcError as error:
        return error.code().value[0]
