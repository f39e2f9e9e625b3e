"""Replays one scenario: places its files, makes its calls one after the other, compares each answer."""

import base64
import json
import pathlib
import time

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

from compare import UNITS, Difference, compare
from server import NotStarted, Started, call_grpc, call_http
from state import StatsD, compare_prometheus

SERVICE = "envoy.service.ratelimit.v3.RateLimit"
SHOULD_RATE_LIMIT = f"/{SERVICE}Service/ShouldRateLimit"
HEALTH_CHECK = "/grpc.health.v1.Health/Check"
HEALTH_STATUSES = ["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"]
CHANNEL = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]


class Protocol:
    """Messages in proto3 JSON to and from bytes, by the descriptors of a file and not by generated code."""

    def __init__(self, path):
        files = descriptor_pb2.FileDescriptorSet.FromString(pathlib.Path(path).read_bytes()).file
        self.pool, waiting = descriptor_pool.DescriptorPool(), {file.name: file for file in files}
        while waiting:
            self.add(next(iter(waiting)), waiting)
        find = lambda name: message_factory.GetMessageClass(self.pool.FindMessageTypeByName(SERVICE + name))
        self.request, self.response = find("Request"), find("Response")

    def add(self, name, waiting):
        file = waiting.pop(name)
        for other in file.dependency:
            if other in waiting:
                self.add(other, waiting)
        self.pool.Add(file)

    def encode(self, request):
        return json_format.ParseDict(request, self.request(), descriptor_pool=self.pool).SerializeToString()

    def decode(self, reply):
        """Returns the response without its headers, and the headers."""
        return split_headers(json_format.MessageToDict(self.response.FromString(reply), descriptor_pool=self.pool))


def split_headers(response):
    return response, response.pop("responseHeadersToAdd", [])


def reason_to_skip(scenario, options):
    kinds = {kind for step in scenario["steps"] for kind in ("http", "debug") if kind in step}
    now = int(time.time())
    starts = [now - now % UNITS[unit] for unit in scenario.get("distinct_windows", [])]
    if len(set(starts)) < len(starts):
        return "its windows began together: run it another day"
    if "store_before" in scenario and not options.redis:
        return "starts with counters in Redis (--redis)"
    if options.command:
        return None
    if scenario["env"]:
        return "needs environment variables (--command)"
    if scenario["load"] != "ok":
        return "needs a server without rules (--command)"
    missing = [f"calls the {kind} port (--{kind})" for kind in sorted(kinds) if not getattr(options, kind)]
    return missing[0] if missing else None


class Replay:
    def __init__(self, protocol, options, running):
        self.protocol, self.options, self.running = protocol, options, running

    def run(self, scenario, redis):
        """Returns the first difference from the recording, or None. A hung or dead server is a difference."""
        files = {name: text.encode() for name, text in scenario["files"].items()}
        files |= {name: base64.b64decode(text) for name, text in scenario.get("files_base64", {}).items()}
        began, server, stats = int(time.time()), self.running, None
        try:
            if server:
                server.begin(files)
            if redis:
                redis.reset(scenario)
            if not server:
                stats = StatsD() if self.options.statsd and "prometheus" not in scenario else None
                server = Started(self.options, scenario, files, self.settings(scenario, redis, stats))
            self.compare_all(scenario, server, redis, stats, began)
        except (Difference, NotStarted) as difference:
            return str(difference)
        except Exception as error:  # A broken server must not end the run.
            return f"{type(error).__name__}: {error}"
        finally:
            if server and server is not self.running:
                server.close()
            if stats:
                stats.close()
        return None

    def settings(self, scenario, redis, stats):
        """The variables of a start that depend on the options of the runner."""
        own = stats.env if stats else {"USE_STATSD": "false"}
        if "prometheus" in scenario:
            own = own | {"USE_PROMETHEUS": "true"}
        if redis:
            own = own | {"BACKEND_TYPE": "redis", "REDIS_TYPE": "SINGLE", "REDIS_SOCKET_TYPE": "tcp",
                         "REDIS_URL": redis.url}
        return own

    def compare_all(self, scenario, server, redis, stats, began):
        with grpc.insecure_channel(server.grpc, options=CHANNEL) as channel:
            for number, step in enumerate(scenario["steps"], 1):
                try:
                    self.perform(step, server, channel)
                except Difference as difference:
                    raise Difference(f"step {number}: {difference}") from None
                except Exception as error:  # As above: the answer may be anything.
                    raise Difference(f"step {number}: {type(error).__name__}: {error}") from None
        if redis and "store" in scenario:
            redis.compare(scenario, began, self.options.not_counters)
        if stats and "metrics" in scenario:
            stats.compare(scenario["metrics"])
        if server.metrics and "prometheus" in scenario:
            compare_prometheus(scenario["prometheus"], server.metrics, self.options.timeout)
        if not server.is_alive():
            raise Difference("the server died")

    def perform(self, step, server, channel):
        if "http" in step:
            self.http(step, server)
        elif "health" in step:
            self.health(step, channel)
        elif "debug" in step:
            self.debug(step, server)
        elif "reload" in step:
            for name, text in step["reload"].get("write", {}).items():
                server.files.write(name, text.encode())
            for name in step["reload"].get("delete", []):
                server.files.delete(name)
            time.sleep(self.options.reload_wait)
        else:
            raw = step.get("request_base64")
            bytes_sent = self.protocol.encode(step["request"]) if raw is None else base64.b64decode(raw)
            self.grpc(step, channel, bytes_sent)

    def grpc(self, step, channel, request):
        before = int(time.time())
        reply = call_grpc(channel, step.get("grpc_method", SHOULD_RATE_LIMIT), request, self.options.timeout)
        seconds = range(before, int(time.time()) + 1)
        if not isinstance(reply, int):
            self.compare_answer(step, *self.protocol.decode(reply), seconds)
        elif "grpc_code" in step["response"]:
            compare("response", step["response"], {"grpc_code": reply})
        else:
            raise Difference(f"the call fails with gRPC code {reply}")

    def compare_answer(self, step, response, headers, seconds):
        compare("response", step["response"], response, seconds)
        if "headers" in step:
            compare("headers", step["headers"], headers, seconds)

    def http(self, step, server):
        call, before = step["http"], int(time.time())
        body = call["body"].encode() if "body" in call else None
        try:
            status, kind, text = call_http(server.http, call["method"], call["path"], body, self.options.timeout)
        except ConnectionError:
            status, kind, text = "connection_lost", None, b""
        seconds = range(before, int(time.time()) + 1)
        compare("status", step["status"], status)
        if "content_type" in step:
            compare("content type", step["content_type"], kind)
        if "response" in step:
            self.compare_answer(step, *split_headers(json.loads(text)), seconds)
        elif "body" in step:
            compare("body", step["body"], text.decode(errors="replace"))

    def health(self, step, channel):
        name = step["health"].encode()
        reply = call_grpc(channel, HEALTH_CHECK, b"\x0a%c%b" % (len(name), name), self.options.timeout)
        answer = {"grpc_code": reply} if isinstance(reply, int) else HEALTH_STATUSES[reply[1] if reply else 0]
        compare("answer", step["answer"], answer)

    def debug(self, step, server):
        status, _, text = call_http(server.debug, "GET", step["debug"], None, self.options.timeout)
        compare("status", step["status"], status)
        if "lines" in step:
            compare("lines", step["lines"], sorted(text.decode(errors="replace").splitlines()))
