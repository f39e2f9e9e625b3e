"""Limits requests with Envoy Gateway and Sluicegate, as docs/with/envoy-gateway.md says.

Guarantees:
- The objects are those of the page. Only the numbers of limits differ.
- Of N+1 requests at a limit of N, exactly N pass: also after a change, a refused change, and a restart of each part.

Not covered:
- Kubernetes' nodes and network, see pods.py. Envoy runs without its shutdown manager.
"""

import re
import unittest

from cluster import Refused
from gateway_system import HEALTH, SYSTEM, System, of_page
from pods import enter
from processes import get, until

LIMIT = 5
RATE_LIMITED, HOOKS, MODELS = "limits.example", "hooks.example", "models.example"
STALE, REJECTED = "sluicegate_config_stale", 'sluicegate_config_loads_total{outcome="rejected"}'

# Reports tokens, as Envoy AI Gateway does.
TOKENS = {
    "apiVersion": "gateway.envoyproxy.io/v1alpha1", "kind": "EnvoyExtensionPolicy",
    "metadata": {"name": "tokens", "namespace": "shop"},
    "spec": {
        "targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "models"}],
        "lua": [{"type": "Inline", "inline": """
            function envoy_on_response(handle)
                handle:streamInfo():dynamicMetadata():set("io.envoy.ai_gateway", "llm_total_token", 4000)
            end
        """}],
    },
}


def per_key(requests):
    """The page's policy with another limit, of a unit that no test outlasts."""
    policy = of_page("BackendTrafficPolicy", "per-key")
    policy["spec"]["rateLimit"]["global"]["rules"][0]["limit"] = {"requests": requests, "unit": "Day"}
    return policy


def equal_rules():
    """A policy for another route, which Envoy Gateway accepts. Its two rules have the same descriptor."""
    policy = of_page("BackendTrafficPolicy", "tokens")
    ranges = [{"sourceCIDR": {"value": "10.0.0.0/8", "type": kind}} for kind in ("Exact", "Distinct")]
    policy["spec"]["rateLimit"]["global"]["rules"] = [
        {"clientSelectors": [one], "limit": {"requests": 1, "unit": "Day"}} for one in ranges
    ]
    return policy


class Gateway(unittest.TestCase):
    maxDiff = None
    clients = 0

    @classmethod
    def setUpClass(cls):
        cls.system = System(per_key(LIMIT))

    def setUp(self):
        self.set_limit(LIMIT)
        self.wait_until_limited()

    def new_client(self):
        Gateway.clients += 1
        return f"client-{self.clients}"

    def statuses(self, host, client, count):
        return [self.system.send(host, client) for _ in range(count)]

    def assert_passes(self, client, count, host=RATE_LIMITED):
        """Exactly this number of further requests pass."""
        self.assertEqual(self.statuses(host, client, count + 2), [200] * count + [429, 429])

    def wait_until_limited(self):
        """Waits until a request is denied, so that all parts are connected."""
        client, system = self.new_client(), self.system
        until(lambda: system.send(RATE_LIMITED, client) == 429, "denied request", *system.processes())

    def set_limit(self, requests):
        self.system.cluster.apply(per_key(requests))
        self.wait_for_limit(requests)

    def wait_for_limit(self, requests):
        text = f"requests_per_unit={requests},"
        until(lambda: text in self.system.limits(), text, *self.system.processes())

    def test_the_page_limits_each_key(self):
        for client in (self.new_client(), self.new_client()):
            self.assert_passes(client, LIMIT)

    def test_a_raised_limit_counts_the_requests_before(self):
        client = self.new_client()
        self.assertEqual(self.statuses(RATE_LIMITED, client, LIMIT), [200] * LIMIT)
        self.set_limit(LIMIT + 3)
        self.assert_passes(client, 3)

    def test_hooks_limit_each_key(self):
        """ext_proc and ext_authz. A key has 10 requests at once, as the page says."""
        pod = self.system.install_sluicegate(requests_per_unit=1, unit="day")
        for kind in ("EnvoyExtensionPolicy", "SecurityPolicy"):
            with self.subTest(kind):
                policy = of_page(kind, "limits")
                self.system.cluster.apply(policy)
                warm = self.new_client()
                until(lambda key=warm: self.system.send(HOOKS, key) == 429, "denied request", pod.process)
                self.assert_passes(self.new_client(), 10, HOOKS)
                self.system.cluster.delete(policy)
                other = self.new_client()
                until(lambda key=other: self.statuses(HOOKS, key, 11) == [200] * 11, "requests without a policy")
        pod.stop()

    def test_tokens_of_responses_count(self):
        """The page's policy with 10,000 tokens, and responses of 4,000 tokens: a check at 8,000 passes."""
        policy = of_page("BackendTrafficPolicy", "tokens")
        policy["spec"]["rateLimit"]["global"]["rules"][0]["limit"]["unit"] = "Day"
        self.system.cluster.apply(policy)
        self.wait_for_limit(10000)
        self.system.cluster.apply(TOKENS)
        first, client = self.new_client(), self.new_client()
        until(lambda: self.system.send(MODELS, first) == 429, "denied request", *self.system.processes())
        for used in (4000, 8000, 12000):
            self.assertEqual(self.system.send(MODELS, client), 200)
            until(lambda total=used: list(self.system.counters(client).values()) == [str(total)], f"{used} tokens")
        self.assertEqual(self.statuses(MODELS, client, 2), [429, 429])

    def test_the_service_accepts_the_environment_of_the_deployment(self):
        self.assertEqual(get(HEALTH, "/healthcheck", address=self.system.service.address).status, 200)
        container = self.system.service.container
        self.assertEqual((container["image"], container["command"]), ("sluicegate:0.1.0", ["/bin/ratelimit"]))
        ignored = re.findall(r"WARN (\w+): no effect", self.system.service.log())
        self.assertEqual(set(ignored), {"GRPC_SERVER_TLS_CA_CERT"})

    def test_a_refused_change_keeps_the_last_limits(self):
        client, before, rejected = self.new_client(), self.system.limits(), self.system.metric(REJECTED)
        self.assertEqual(self.statuses(RATE_LIMITED, client, 2), [200, 200])
        self.system.cluster.apply(equal_rules())
        until(lambda: self.system.metric(REJECTED) > rejected, "rejected limits", *self.system.processes())
        self.assertEqual((self.system.metric(STALE), self.system.limits()), (1, before))
        self.assertIn("limits from the xDS server rejected: keeping version", self.system.service.log())
        self.assert_passes(client, LIMIT - 2)
        self.assertEqual(self.statuses(MODELS, client, LIMIT), [200] * LIMIT, "the route of the refused rules")
        self.system.cluster.delete(equal_rules())
        until(lambda: self.system.metric(STALE) == 0, "accepted limits", *self.system.processes())
        self.assert_passes(client, 0)

    def test_an_invalid_policy_changes_nothing(self):
        before = self.system.limits()
        for limit in ({"requests": 1, "unit": "Fortnight"}, {"requests": "many", "unit": "Day"}):
            policy = per_key(1)
            policy["spec"]["rateLimit"]["global"]["rules"][0]["limit"] = limit
            with self.assertRaises(Refused):
                self.system.cluster.apply(policy)
        self.assertEqual(self.system.limits(), before)
        self.assert_passes(self.new_client(), LIMIT)

    def check_restart(self, restart):
        """Counters of clients go on after a restart."""
        client = self.new_client()
        self.assertEqual(self.statuses(RATE_LIMITED, client, 2), [200, 200])
        restart()
        self.wait_until_limited()
        self.assert_passes(client, LIMIT - 2)

    def test_a_restart_of_the_service_keeps_counters(self):
        self.check_restart(self.system.service.restart)

    def test_a_restart_of_redis_keeps_counters(self):
        self.check_restart(self.system.redis.restart)

    def test_a_restart_of_envoy_keeps_counters(self):
        self.check_restart(self.system.envoy.restart)

    def test_a_restart_of_the_gateway_keeps_limits(self):
        self.check_restart(self.system.gateway.restart)
        self.set_limit(LIMIT + 1)
        self.assert_passes(self.new_client(), LIMIT + 1)

    def test_limits_stay_without_the_gateway_and_change_with_it(self):
        self.system.gateway.stop()
        self.assert_passes(self.new_client(), LIMIT)
        self.system.cluster.apply(per_key(LIMIT - 1))
        self.system.gateway.start()
        self.wait_for_limit(LIMIT - 1)
        self.assert_passes(self.new_client(), LIMIT - 1)


if __name__ == "__main__":
    enter()
    unittest.main(failfast=True, verbosity=2)
