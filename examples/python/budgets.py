"""A program without a proxy: reserves tokens before a request, and settles what it used.

Run `scripts/examples.sh` and `sluicegate serve --limits-paths config/budgets`, then
`.tools/examples/bin/python examples/python/budgets.py`.
"""

import contextlib
import secrets
import sys

import grpc
from sluicegate.v1 import budgets_pb2 as api
from sluicegate.v1 import budgets_pb2_grpc, permits_pb2

ATTEMPTS = 3


def reserve(budgets, target, tokens):
    """Returns the id of a new hold."""
    for _ in range(ATTEMPTS):
        # Hard to guess: a client that knows the id can settle the request.
        request_id = secrets.token_hex(16)
        try:
            reply = budgets.Reserve(api.ReserveRequest(id=request_id, tokens=tokens, **target), timeout=2)
        except grpc.RpcError:
            print("no reply to the reserve: canceling its id", flush=True)
            # After the cancel, the id has ended: the hold is gone, and a reserve that arrives later is denied. So
            # the next attempt has another id. If the cancel fails, too, the hold ends after `time_limit`.
            budgets.Cancel(api.CancelRequest(id=request_id, **target), timeout=30)
            continue
        if reply.verdict != api.ReserveResponse.ALLOW:
            sys.exit(f"denied: {reply.reason}")
        return request_id
    sys.exit("no reply to any reserve")


def settle(budgets, request):
    """Settles. A repeated settle changes nothing, so a lost reply is no problem."""
    for left in reversed(range(ATTEMPTS)):
        try:
            return budgets.Settle(request, timeout=2)
        except grpc.RpcError:
            if left == 0:
                raise


@contextlib.contextmanager
def reserved(budgets, target, tokens):
    """Holds up to `tokens` during the block, which sets `usage`; without it, the held tokens are charged."""
    request = api.SettleRequest(id=reserve(budgets, target, tokens), **target)
    try:
        yield request
    except ConnectionRefusedError:
        # The provider never got the request, so it costs nothing.
        budgets.Cancel(api.CancelRequest(id=request.id, **target), timeout=2)
        print("canceled")
        return
    except BaseException:
        settle(budgets, request)
        raise
    for budget in settle(budgets, request).budgets:
        print(f"{budget.path}: {budget.settled} of {budget.amount} {budget.unit} settled, {budget.held} held")


address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8081"
entries = [permits_pb2.Entry(key=key, value=value) for key, value in (("org", "acme"), ("model", "large"))]
target = {"domain": "llm", "descriptors": [permits_pb2.Descriptor(entries=entries)]}
with grpc.insecure_channel(address) as channel:
    budgets = budgets_pb2_grpc.BudgetsStub(channel)
    with reserved(budgets, target, tokens=500) as request:
        # Here the program calls the provider, whose reply has the usage.
        request.usage.CopyFrom(api.TokenUsage(input=100, output=20))
    with reserved(budgets, target, tokens=500):
        raise ConnectionRefusedError
