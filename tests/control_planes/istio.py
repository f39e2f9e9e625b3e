"""Sluicegate in a mesh of Istio, with the objects of docs/with/istio.md and docs/guides/limits-inside-envoy.md.

The tests run in the order of their names, and stop at the first failure. The mesh is in istio_mesh.py.
"""

import json
import os
import pathlib
import sys
import unittest

import yaml

from cluster import Refused
from istio_mesh import (ALLOWED, CLUSTER, DENIED, LOCAL_PORTS, PROGRAM, SIDECAR_PORT, UPSTREAM, Mesh, blocks, changed,
                        page_object)
from processes import get, until

PAGE = "docs/with/istio.md"
LIMIT = 50


def enter():
    """Starts this script again, with a network and processes of its own. Needs root, or namespaces of users."""
    if os.environ.get("IN_NAMESPACES") != "yes":
        users = [] if os.geteuid() == 0 else ["--map-root-user"]
        os.environ["IN_NAMESPACES"] = "yes"
        os.execvp("unshare", ["unshare", *users, "--net", "--pid", "--fork", "--kill-child", "--mount-proc",
                              sys.executable, *sys.argv])


class Istio(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.mesh = Mesh()
        cls.filter = page_object(PAGE, "EnvoyFilter")
        cls.probe = cls.mesh.address()

    def apply(self, envoy_filter):
        self.mesh.cluster.apply(envoy_filter)

    def statuses(self, count, address):
        return [self.mesh.ask(address).status for _ in range(count)]

    def use_up(self, address):
        """Sends exactly the allowed requests of an address, then one more."""
        self.assertEqual(self.statuses(LIMIT + 1, address), [ALLOWED] * LIMIT + [DENIED], address)

    def a_used_up_address(self):
        address = self.mesh.address()
        self.use_up(address)
        return address

    def use_yearly_limits(self, **fields):
        """The page's filter in a domain whose unit is a year, with a long timeout: no verdict depends on the clock."""
        self.apply(changed(self.filter, domain="mesh-year", **{"timeout": "60s", **fields}))
        until(lambda: '"mesh-year"' in self.mesh.gateway.dump("dynamic_listeners"), "changed domain")
        self.wait_for_denials()

    def wait_for_denials(self):
        processes = [process for process in self.mesh.replicas if process.is_running()]
        until(lambda: set(self.statuses(LIMIT + 1, self.probe)[-9:]) == {DENIED}, "denials", *processes)

    def passed_without_decision(self):
        """The number of requests that Envoy let pass because the check failed."""
        return self.mesh.gateway.stat(f"cluster.{UPSTREAM};.ratelimit.failure_mode_allowed")

    def test_01_the_page_limits_each_address(self):
        shown = blocks(PAGE, "text")[0].splitlines()

        def denied():
            address = self.mesh.address()
            self.assertEqual(self.statuses(LIMIT, address), [ALLOWED] * LIMIT)
            reply = self.mesh.ask(address)
            return reply if reply.status == DENIED else None

        reply = until(denied, "denial of the next request in the same second", *self.mesh.replicas)
        self.assertEqual(f"HTTP/1.1 {reply.status}", shown[0])
        for line in shown[1:]:
            name, value = line.split(": ", 1)
            self.assertEqual(reply.headers.get(name), value, name)
        self.assertEqual(self.mesh.ask().status, ALLOWED)

    def test_02_the_cluster_has_mutual_tls_http2_and_the_destination_rule(self):
        self.assertLess(0, self.mesh.gateway.stat(f"cluster.{CLUSTER};.ssl.handshake"))
        cluster = self.mesh.gateway.cluster(CLUSTER)
        options = cluster["typed_extension_protocol_options"]["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"]
        self.assertIn("http2_protocol_options", options["explicit_http_config"])
        self.assertEqual((cluster["connect_timeout"], cluster["lb_policy"]), ("0.250s", "LEAST_REQUEST"))
        ejection = cluster["outlier_detection"]
        self.assertTrue(ejection["split_external_local_origin_errors"])
        self.assertEqual((ejection["consecutive_local_origin_failure"], ejection["max_ejection_percent"]), (1, 50))
        self.assertEqual((ejection["interval"], ejection["base_ejection_time"]), ("1s", "1s"))

    def test_03_another_domain_takes_effect_without_a_restart(self):
        self.use_yearly_limits()
        self.a_used_up_address()
        self.assertEqual(self.mesh.ask().status, ALLOWED)

    def test_04_other_actions_take_effect_without_a_restart(self):
        self.count_offices()
        rome = [self.mesh.ask(headers={"x-office": "rome"}).status for _ in range(LIMIT + 1)]
        self.assertEqual(rome, [ALLOWED] * LIMIT + [DENIED])
        self.use_yearly_limits()

    def count_offices(self):
        """Counts the header x-office instead of the address, and uses up the limit of Paris."""
        actions = [{"request_headers": {"header_name": "x-office", "descriptor_key": "remote_address"}}]
        self.apply(changed(self.filter, domain="mesh-year", actions=actions, timeout="60s"))
        self.wait_for_paris()

    def wait_for_paris(self):
        paris = {"x-office": "paris"}
        until(lambda: self.mesh.ask(headers=paris).status == DENIED, "denial of an office", self.mesh.gateway.process)

    def test_05_a_filter_that_istio_refuses_changes_nothing(self):
        used_up = self.a_used_up_address()
        refused = changed(self.filter, domain="mesh-year")
        del refused["spec"]["configPatches"][1]["patch"]["value"]
        with self.assertRaisesRegex(Refused, "missing patch value"):
            self.apply(refused)
        self.assertEqual(self.mesh.ask(used_up).status, DENIED)
        self.a_used_up_address()
        self.use_yearly_limits(timeout="61s")
        until(lambda: '"61s"' in self.mesh.gateway.dump("dynamic_listeners"), "the next valid change")

    def test_06_a_filter_that_envoy_refuses_changes_nothing_until_a_restart(self):
        used_up = self.a_used_up_address()
        refusals = "listener_manager.lds.update_rejected"
        before = self.mesh.gateway.stat(refusals)
        self.apply(changed(self.filter, domain="mesh-year", stage=11))
        until(lambda: before < self.mesh.gateway.stat(refusals), "refusal by Envoy", self.mesh.gateway.process)
        self.assertIn(b"pilot_total_xds_rejects", get(15014, "/metrics").body)
        self.assertEqual(self.mesh.ask(used_up).status, DENIED)
        self.a_used_up_address()
        self.mesh.gateway.process.restart()
        until(lambda: self.mesh.gateway.stat(refusals), "refusal by the new Envoy", self.mesh.gateway.process)
        with self.assertRaises(ConnectionRefusedError):
            self.mesh.ask()
        self.use_yearly_limits()
        self.assertEqual(self.mesh.ask(used_up).status, DENIED)

    def test_07_limits_apply_while_pilot_discovery_is_down(self):
        used_up = self.a_used_up_address()
        self.mesh.pilot.stop()
        self.assertEqual(self.mesh.ask(used_up).status, DENIED)
        self.a_used_up_address()
        self.mesh.pilot.start()
        self.mesh.wait_for_pilot()
        self.count_offices()
        self.use_yearly_limits()

    def test_08_limits_apply_after_a_restart_of_envoy(self):
        used_up = self.a_used_up_address()
        self.mesh.gateway.process.restart()
        self.wait_for_denials()
        self.assertEqual(self.mesh.ask(used_up).status, DENIED)
        self.a_used_up_address()

    def test_09_counters_continue_after_a_restart_of_sluicegate(self):
        address = self.mesh.address()
        self.assertEqual(self.statuses(LIMIT - 20, address), [ALLOWED] * (LIMIT - 20))
        for replica in self.mesh.replicas:
            replica.restart()
        self.mesh.wait_for_replicas()
        self.wait_for_denials()
        self.assertEqual(self.statuses(21, address), [ALLOWED] * 20 + [DENIED])

    def test_10_the_destination_rule_ejects_a_failed_replica(self):
        ejections = f"cluster.{CLUSTER};.outlier_detection.ejections_enforced_total"
        before = self.mesh.gateway.stat(ejections)
        self.mesh.replicas[0].kill()
        until(lambda: self.mesh.ask() and before < self.mesh.gateway.stat(ejections), "ejection")
        self.wait_for_denials()
        self.mesh.replicas[0].start()
        self.mesh.wait_for_replicas()
        self.wait_for_denials()
        self.a_used_up_address()

    def test_11_requests_pass_while_sluicegate_is_down(self):
        used_up = self.a_used_up_address()
        before = self.passed_without_decision()
        for replica in self.mesh.replicas:
            replica.kill()
        self.assertEqual(self.statuses(20, used_up), [ALLOWED] * 20)
        self.assertEqual(self.passed_without_decision() - before, 20)
        for replica in self.mesh.replicas:
            replica.start()
        self.mesh.wait_for_replicas()
        self.wait_for_denials()
        self.assertEqual(self.mesh.ask(used_up).status, DENIED)

    def test_12_requests_pass_after_the_timeout_while_sluicegate_hangs(self):
        used_up = self.a_used_up_address()
        self.apply(changed(self.filter, domain="mesh-year"))
        until(lambda: '"0.250s"' in self.mesh.gateway.dump("dynamic_listeners"), "timeout of the page")
        before = self.passed_without_decision()
        for replica in self.mesh.replicas:
            replica.freeze()
        self.assertEqual(self.mesh.ask(used_up).status, ALLOWED)
        self.assertEqual(self.passed_without_decision() - before, 1)
        for replica in self.mesh.replicas:
            replica.thaw()
        self.use_yearly_limits()

    def test_13_forwarded_addresses_count_only_with_trusted_proxies(self):
        used_up = self.a_used_up_address()
        forwarded = {"x-forwarded-for": "198.51.100.1, 203.0.113.7"}
        self.assertEqual(self.mesh.ask(used_up, forwarded).status, DENIED)
        annotation = blocks("docs/guides/limit-by-client-address.md#istio", "text")[0]
        proxy_config = json.loads(yaml.safe_load(annotation)["annotations"]["proxy.istio.io/config"])
        gateway = self.mesh.gateway
        gateway.process.environment["PROXY_CONFIG"] = gateway.config(**proxy_config)
        gateway.process.restart()
        self.wait_for_denials()
        answers = [self.mesh.ask(headers=forwarded).status for _ in range(LIMIT + 1)]
        self.assertEqual(answers, [ALLOWED] * LIMIT + [DENIED])
        self.assertEqual(self.mesh.ask(headers={"x-forwarded-for": "203.0.113.8"}).status, ALLOWED)

    def test_14_gateways_with_only_referenced_clusters_limit(self):
        unreferenced = changed(self.filter, domain="mesh-year", timeout="60s")
        del unreferenced["metadata"]["annotations"]
        self.apply(unreferenced)
        self.mesh.pilot.environment["PILOT_FILTER_GATEWAY_CLUSTER_CONFIG"] = "true"
        self.mesh.pilot.restart()
        self.mesh.wait_for_pilot()
        until(lambda: not self.mesh.gateway.cluster(CLUSTER), "gateway without the cluster", self.mesh.pilot)
        self.assertEqual(self.mesh.ask(self.probe).status, ALLOWED)
        self.use_yearly_limits()
        self.a_used_up_address()

    def test_15_a_sidecar_limits_its_inbound_requests(self):
        labels = {"app": "shop"}
        inbound = changed(self.filter, domain="mesh-year", timeout="60s")
        inbound["metadata"]["namespace"] = "shop"
        inbound["spec"]["workloadSelector"]["labels"] = labels
        for patch in inbound["spec"]["configPatches"]:
            patch["match"]["context"] = "SIDECAR_INBOUND"
        self.apply(inbound)
        self.mesh.start_sidecar("shop", labels)

        def ask(client):
            return self.mesh.ask(headers={"x-forwarded-for": client}, port=SIDECAR_PORT).status

        until(lambda: ask("192.0.2.1") == DENIED, "denial by the sidecar", self.mesh.sidecar.process)
        self.assertEqual([ask("192.0.2.2") for _ in range(LIMIT + 1)], [ALLOWED] * LIMIT + [DENIED])

    def test_16_the_module_limits_inside_the_gateway(self):
        self.mesh.cluster.delete(self.filter)
        inside = page_object("docs/guides/limits-inside-envoy.md", "EnvoyFilter")
        value = inside["spec"]["configPatches"][0]["patch"]["value"]["typed_config"]["filter_config"]["value"]
        # The page's service has TLS.
        value.update({"domain": "mesh-year", "service": {"address": f"127.0.0.1:{LOCAL_PORTS[0]['grpc']}"}})
        gateway = self.mesh.gateway
        gateway.process.environment["ENVOY_DYNAMIC_MODULES_SEARCH_PATH"] = str(pathlib.Path(PROGRAM).parent)
        gateway.process.restart()
        address = self.mesh.address()
        until(lambda: set(self.statuses(LIMIT + 1, address)) == {ALLOWED}, "gateway without limits", gateway.process)
        self.apply(inside)
        until(lambda: self.mesh.ask(address).status == DENIED, "denial by the module", gateway.process)
        self.assertEqual(self.mesh.ask().status, ALLOWED)


if __name__ == "__main__":
    enter()
    unittest.main(failfast=True, verbosity=2)
