"""The state behind the replies: the counters in Redis, the StatsD counters and the Prometheus series."""

import re
import socket
import threading
import time

from compare import UNITS, Difference, counter_name
from server import call_http, split

FLUSH_SECONDS = 20
READ_SECONDS = 60
OPEN = ("config_load_success", "config_load_error")


class Redis:
    """One database of a Redis, in which only the server under test writes."""

    def __init__(self, address, database, seconds):
        self.url = f"redis://{address}/{database}"
        self.socket = socket.create_connection(split(address), seconds)
        self.replies = self.socket.makefile("rb")
        self.call("SELECT", database)

    def call(self, *words):
        encoded = [str(word).encode() for word in words]
        parts = [b"*%d\r\n" % len(words)] + [b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded]
        self.socket.sendall(b"".join(parts))
        return self.read()

    def read(self):
        line = self.replies.readline().rstrip(b"\r\n")
        kind, rest = line[:1], line[1:]
        if kind == b"-" or not line:
            raise OSError(f"Redis answers {line.decode(errors='replace') or 'nothing'}")
        if kind == b"*":
            return [self.read() for _ in range(int(rest))]
        if kind == b"$" and rest != b"-1":
            return self.replies.read(int(rest) + 2)[:-2].decode(errors="backslashreplace")
        return int(rest) if kind == b":" else rest.decode()

    def reset(self, scenario):
        self.call("FLUSHDB")
        for name, value in scenario.get("store_before", {}).items():
            self.call("SET", counter_name(name, int(time.time())), value)

    def compare(self, scenario, began, ignored):
        """The counters must be the recorded ones. Names that begin with an ignored text are no counters."""
        names = [name for name in self.call("KEYS", "*") if not name.startswith(tuple(ignored))]
        counters = {name: self.call("GET", name) for name in names}
        wanted = [{counter_name(name, now): value for name, value in scenario["store"].items()}
                  for now in (began, int(time.time()))]
        if counters not in wanted:
            raise Difference(f"store is {counters} instead of {wanted[0]}")
        for name in scenario["store"]:
            if name not in scenario.get("store_before", {}):
                self.compare_expiry(scenario, name, began)

    def compare_expiry(self, scenario, name, began):
        jitter = int(scenario["env"].get("EXPIRATION_JITTER_MAX_SECONDS", 300))
        length = next((length for unit, length in UNITS.items() if f"{{window_start:{unit}}}" in name), 1)
        default = (-2 if length < READ_SECONDS else length - READ_SECONDS, length + jitter)
        least, most = scenario.get("store_ttl_between", {}).get(name, default)
        left = [self.call("TTL", counter_name(name, now)) for now in (began, int(time.time()))]
        if not any(least <= ttl <= most for ttl in left):
            raise Difference(f"store: {name} expires in {left[0]} s, not in {least} to {most} s")


class StatsD:
    """Receives StatsD counters over UDP and adds them up."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.counters, self.lock = {}, threading.Lock()
        self.env = {
            "USE_STATSD": "true", "STATSD_PROTOCOL": "udp", "STATSD_HOST": "127.0.0.1",
            "STATSD_PORT": str(self.socket.getsockname()[1]), "STATS_FLUSH_INTERVAL": "1s",
        }
        threading.Thread(target=self.receive, daemon=True).start()

    def receive(self):
        while packet := self.socket.recv(65_536):
            for line in packet.decode(errors="replace").split("\n"):
                name, _, rest = line.rpartition(":")
                amount, _, kind = rest.partition("|")
                if kind.startswith("c"):
                    with self.lock:
                        self.counters[name] = self.counters.get(name, 0) + int(amount)
        self.socket.close()

    def compare(self, recorded):
        """Waits for the server's next flush, for a limited time. A count above the recorded one ends the wait."""
        end, wanted = time.monotonic() + FLUSH_SECONDS, plain_names(recorded)
        while True:
            with self.lock:
                received = plain_names(self.counters)
            found = first_difference(wanted, received, is_open_counter)
            if not found:
                return
            if end < time.monotonic() or any(wanted[name] < received.get(name, 0) for name in wanted):
                raise Difference(f"metrics: {found}")
            time.sleep(0.05)

    def close(self):
        self.socket.sendto(b"", self.socket.getsockname())


def plain_names(counters):
    """A control character in a name equals `_`: a server may replace it, because a line cannot have all of them."""
    return {re.sub(r"[\x00-\x1f\x7f]", "_", name): count for name, count in counters.items()}


def is_open_counter(name):
    return not name.startswith("ratelimit.service.") or name.endswith(OPEN)


def compare_prometheus(recorded, address, seconds):
    page = call_http(address, "GET", "/metrics", None, seconds)[2].decode()
    series = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    series = {name: float(value) for name, value in series.items()}
    is_open = lambda name: not name.startswith("ratelimit_service_") or "_response_time_" in name
    if found := first_difference(recorded, series, is_open):
        raise Difference(f"prometheus: {found}")


def first_difference(recorded, received, is_open):
    """Compares numbers by name. A number that was not recorded must be 0, unless `is_open` leaves it open."""
    for name in list(recorded) + [name for name in received if not is_open(name)]:
        if recorded.get(name, 0) != received.get(name, 0):
            return f"{name} is {received.get(name, 0)} instead of {recorded.get(name, 0)}"
    return None
