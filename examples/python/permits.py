"""A program without a proxy: checks a rate limit, and holds a permit during its work.

Run `scripts/examples.sh` and `sluicegate serve --limits-paths config/concurrency`, then
`.tools/examples/bin/python examples/python/permits.py`.
"""

import contextlib
import json
import secrets
import sys
import urllib.error
import urllib.request

import grpc
from sluicegate.v1 import permits_pb2 as api
from sluicegate.v1 import permits_pb2_grpc


class Denied(Exception):
    """A limit denied the work."""


def check(url, domain, **entries):
    """Charges one hit to rate limits. Without a reply in time, the work is allowed."""
    entries = [{"key": key, "value": value} for key, value in entries.items()]
    body = json.dumps({"domain": domain, "descriptors": [{"entries": entries}]}).encode()
    try:
        urllib.request.urlopen(f"{url}/json", body, timeout=2).close()
    except urllib.error.HTTPError as error:
        if error.code == 429:
            raise Denied(f"rate limit; retry after {error.headers['Retry-After']} s") from None
        print(f"not checked: {error}", file=sys.stderr)
    except OSError as error:
        print(f"not checked: {error}", file=sys.stderr)


@contextlib.contextmanager
def permit(permits, domain, **entries):
    """Holds a permit during the block."""
    entries = [api.Entry(key=key, value=value) for key, value in entries.items()]
    # Hard to guess: a client that knows the id can release the permit.
    work = secrets.token_hex(16)
    request = api.AcquireRequest(id=work, domain=domain, descriptors=[api.Descriptor(entries=entries)])
    owner, outcome = "", api.IGNORED
    try:
        reply = permits.Acquire(request, timeout=2)
        owner = reply.owner
        if reply.verdict != api.AcquireResponse.ALLOW:
            raise Denied(reply.reason)
        yield
        outcome = api.SUCCESS
    except TimeoutError:
        # The server of the work is overloaded: an adaptive limit falls.
        outcome = api.DROPPED
        raise
    finally:
        # Also without a reply to the acquire, which may have got a permit. A lost release ends with `max_duration`.
        with contextlib.suppress(grpc.RpcError):
            permits.Release(api.ReleaseRequest(id=work, outcome=outcome, owner=owner), timeout=2)


address, url = (sys.argv[1:] + ["127.0.0.1:8081", "http://127.0.0.1:8080"])[:2]
with grpc.insecure_channel(address) as channel:
    permits = permits_pb2_grpc.PermitsStub(channel)
    try:
        check(url, "edge", api_key="demo")
        print("the rate limit allows the work")
        with permit(permits, "edge", upstream="all"):
            print("a permit is held")
            with permit(permits, "edge", upstream="all"):
                print("another permit is held")
    except Denied as why:
        print(f"denied: {why}")
