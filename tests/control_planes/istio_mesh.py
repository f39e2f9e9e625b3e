"""A mesh of Istio: pilot-discovery at a Kubernetes API server, with Istio's webhooks.

Sluicegate has the Service, settings and limits that the chart renders with its preset `istio`, and two replicas at a
Redis, each with a sidecar that admits mutual TLS only. The upstream has none. The objects of the documentation are read
from its pages. All processes run in a network of their own.

Not covered: Istio's sidecar injector. A `Sidecar` object opens the ports to which iptables would redirect.
"""

import copy
import http.client
import http.server
import json
import os
import re
import subprocess
import threading

import yaml

from cluster import Cluster, documents, run
from istio_proxy import SOURCE, Proxy
from processes import PATIENCE, ROOT, TOOLS, Process, Reply, folder, get, until

PROGRAM = os.environ.get("CONTROL_PLANES_PROGRAM", ROOT / "target/debug/sluicegate")
CLUSTER = "outbound|8081||sluicegate.gate.svc.cluster.local"
UPSTREAM = "outbound|80||upstream.shop.svc.cluster.local"
ALLOWED, DENIED = "200 OK", "429 Too Many Requests"
READY, GATEWAY_PORT, SIDECAR_PORT, UPSTREAM_PORT = 8080, 80, 8000, 8001
REPLICAS, APPLICATION = {"sluicegate-0": "10.244.7.11", "sluicegate-1": "10.244.7.12"}, "10.244.7.20"
# The listeners of Sluicegate behind the sidecar of a replica, on the loopback address.
LOCAL_PORTS = [{"grpc": 18081, "http": 18080, "metrics": 19090}, {"grpc": 28081, "http": 28080, "metrics": 29090}]
PILOT = {
    "POD_NAMESPACE": "istio-system",
    "REVISION": "default",
    # Stock Envoy has none of Istio's filters.
    "PILOT_ENABLE_METADATA_EXCHANGE": "false",
    "PILOT_ENABLE_ALPN_FILTER": "false",
    "PILOT_ENABLE_GATEWAY_API": "false",
    # The name in the certificate of the webhooks.
    "ISTIOD_CUSTOM_HOST": "localhost",
}


def blocks(page, language):
    """The code blocks of a page in this language, or of its section: `PAGE#SECTION`."""
    page, _, section = page.partition("#")
    text = (ROOT / page).read_text()
    if section:
        text = re.search(rf"^## {section}$(.*?)^## ", text, re.DOTALL | re.MULTILINE | re.IGNORECASE)[1]
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def page_object(page, kind):
    """The only Kubernetes object of this kind on a page."""
    found = [yaml.safe_load(text) for text in blocks(page, "yaml") if f"\nkind: {kind}\n" in text]
    assert len(found) == 1, f"{page} has {len(found)} objects of the kind {kind}"
    return found[0]


def rendered(chart, namespace, *flags):
    """The objects of a chart."""
    return documents(run(TOOLS / "helm", "template", "sluicegate", chart, "--namespace", namespace,
                         "--kube-version", "1.36.3", *flags))


def resource(kind, name, namespace, spec, group="networking"):
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": f"{group}.istio.io/v1", "kind": kind, "metadata": metadata, "spec": spec}


def endpoints(name, namespace, addresses, ports):
    """The EndpointSlice that a controller would create for a Service. `addresses` has the address of each pod."""
    return {
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": f"{name}-1", "namespace": namespace, "labels": {"kubernetes.io/service-name": name}},
        "ports": [{"name": name, "port": port, "protocol": "TCP"} for name, port in ports.items()],
        "endpoints": [{"addresses": [address], "conditions": {"ready": True},
                       "targetRef": {"kind": "Pod", "name": pod, "namespace": namespace}}
                      for pod, address in addresses.items()],
    }


def inbound(labels, address, ports):
    """The spec of a Sidecar whose ports forward to ports of the loopback address: (number, name, protocol): port."""
    ingress = [{"port": {"number": number, "name": name, "protocol": protocol}, "bind": address, "captureMode": "NONE",
                "defaultEndpoint": f"127.0.0.1:{port}"} for (number, name, protocol), port in ports.items()]
    return {"workloadSelector": {"labels": labels}, "ingress": ingress, "egress": [{"hosts": ["gate/*"]}]}


def changed(envoy_filter, domain=None, actions=None, **fields):
    """A copy of the page's EnvoyFilter with another domain, other actions, or other fields of the filter."""
    copied = copy.deepcopy(envoy_filter)
    values = [patch["patch"]["value"] for patch in copied["spec"]["configPatches"]]
    typed = next(value["typed_config"] for value in values if "typed_config" in value)
    hosts = next(value for value in values if "rate_limits" in value)
    typed.update({"domain": domain or typed["domain"], **fields})
    hosts["rate_limits"] = [{"actions": actions}] if actions else hosts["rate_limits"]
    return copied


class Upstream(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "8")
        self.end_headers()
        self.wfile.write(b"upstream")

    def log_message(self, *_):
        pass


class Mesh:
    """The processes and objects of the mesh. Each test asks from client addresses that no other test uses."""

    def __init__(self):
        self.addresses = (f"127.0.{third}.{last}" for third in range(1, 255) for last in range(1, 255))
        run("ip", "link", "set", "lo", "up")
        for address in [*REPLICAS.values(), APPLICATION]:
            run("ip", "address", "add", f"{address}/32", "dev", "lo")
        self.cluster = Cluster()
        self.cluster.install(ROOT / ".tools/crds/customresourcedefinitions.gen.yaml")
        for namespace in ["istio-system", "gate", "shop"]:
            self.cluster.namespace(namespace)
        self.redis = Process("istio-redis", ["redis-server", "--save", "", "--port", 6379])
        server = http.server.ThreadingHTTPServer(("0.0.0.0", UPSTREAM_PORT), Upstream)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.start_replicas()
        self.start_pilot()
        self.start_sidecars()
        self.apply_objects()
        labels = {"istio": "ingressgateway", "app": "istio-ingressgateway"}
        self.gateway = Proxy(self.cluster, "gateway", "router", "10.244.7.2", "istio-system", labels, 8)
        until(lambda: self.ask().status == ALLOWED, "answer through the gateway", self.pilot, self.gateway.process)

    def start_replicas(self):
        """Sluicegate with the chart's objects. The domain `mesh-year` has the preset's limits with the unit year."""
        objects = rendered(ROOT / "charts/sluicegate", "gate", "--values", ROOT / "charts/sluicegate/values/istio.yaml",
                           "--set", "redis.external.url=redis://127.0.0.1:6379")
        chart = {(one["kind"], one["metadata"]["name"]): one for one in objects}
        files = folder("istio-sluicegate")
        settings, limits = files / "server.yaml", files / "limits"
        settings.write_text(chart["ConfigMap", "sluicegate-settings"]["data"]["server.yaml"])
        limits.mkdir()
        preset = chart["ConfigMap", "sluicegate-limits"]["data"]["mesh.yaml"]
        year = preset.replace("unit: second", "unit: year").replace("domain: mesh", "domain: mesh-year")
        assert year.count("year") == 2, preset
        (limits / "mesh.yaml").write_text(preset)
        (limits / "year.yaml").write_text(year)
        start = [PROGRAM, "fleet", "start", "--if-new", "--settings", settings]
        until(lambda: subprocess.run(start, capture_output=True, check=False).returncode == 0, "start of the fleet",
              self.redis)
        self.replicas = [Process(f"istio-sluicegate-{at}", [
            PROGRAM, "serve", "--settings", settings, "--limits-paths", limits, "--listen-host", "127.0.0.1",
            "--listen-admin-port", 0, "--listen-peer-port", 0, "--listen-drain-delay", "1s",
            *(f"--listen-{name}-port={port}" for name, port in ports.items()),
        ]) for at, ports in enumerate(LOCAL_PORTS)]
        self.wait_for_replicas()
        self.account, self.service = chart["ServiceAccount", "sluicegate"], chart["Service", "sluicegate"]
        self.template = chart["Deployment", "sluicegate"]["spec"]["template"]

    def wait_for_replicas(self):
        for process, ports in zip(self.replicas, LOCAL_PORTS):
            until(lambda port=ports["http"]: get(port, "/readyz").status == 200, "ready replica", process)

    def start_sidecars(self):
        """Starts the sidecars of Sluicegate, and applies the objects of its pods and its Service."""
        self.cluster.apply(resource("PeerAuthentication", "default", "gate", {"mtls": {"mode": "STRICT"}}, "security"))
        self.cluster.apply(self.account)
        ports = self.service["spec"]["ports"]
        for at, (name, address) in enumerate(REPLICAS.items()):
            labels = {**self.template["metadata"]["labels"], "replica": name}
            injected = {**labels, "security.istio.io/tlsMode": "istio"}
            self.apply_pod(name, "gate", address, injected, self.template["spec"])
            self.cluster.apply(resource("Sidecar", name, "gate", inbound({"replica": name}, address, {
                (port["port"], port["name"], port["appProtocol"].upper()): LOCAL_PORTS[at][port["name"]]
                for port in ports})))
            Proxy(self.cluster, name, "sidecar", address, "gate", labels, at, self.account["metadata"]["name"])
        self.cluster.apply(self.service)
        self.cluster.apply(endpoints("sluicegate", "gate", REPLICAS, {port["name"]: port["port"] for port in ports}))

    def apply_pod(self, name, namespace, address, labels, spec):
        """A running pod."""
        metadata = {"name": name, "namespace": namespace, "labels": labels}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        running = self.cluster.apply(pod)
        running["status"] = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
                             "conditions": [{"type": "Ready", "status": "True"}]}
        self.cluster.call("PUT", f"{self.cluster.path(pod)}/status", running)

    def start_pilot(self):
        """Starts pilot-discovery, then the webhooks of Istio's charts."""
        mesh = folder("istio-pilot") / "mesh.yaml"
        mesh.write_text(json.dumps({"enableTracing": False}))
        self.pilot = Process("istio-pilot", [
            TOOLS / "pilot-discovery", "discovery", "--kubeconfig", self.cluster.kubeconfig, "--meshConfig", mesh,
            "--namespace", "istio-system", "--httpAddr", f"127.0.0.1:{READY}", "--shutdownDuration", "1s"], PILOT)
        self.wait_for_pilot()
        charts = SOURCE / "manifests/charts"
        url = "base.validationURL=https://localhost:15017/validate"
        objects = [one for chart in [charts / "base", charts / "istio-control/istio-discovery"]
                   for one in rendered(chart, "istio-system", "--set", url)]
        webhooks = [one for one in objects if one["kind"] == "ValidatingWebhookConfiguration"]
        for webhook in webhooks:
            self.cluster.apply(webhook)
        until(lambda: all(self.is_enforced(one) for one in webhooks), "webhooks of Istio", self.pilot)

    def wait_for_pilot(self):
        until(lambda: get(READY, "/ready").status == 200, "ready pilot-discovery", self.pilot)

    def is_enforced(self, configuration):
        found = self.cluster.call("GET", self.cluster.path(configuration))
        return all(one["failurePolicy"] == "Fail" for one in found["webhooks"])

    def apply_objects(self):
        port = {"name": "http", "port": 80, "appProtocol": "http"}
        metadata = {"name": "upstream", "namespace": "shop"}
        containers = [{"name": "upstream", "image": "upstream"}]
        self.apply_pod("upstream", "shop", APPLICATION, {}, {"containers": containers})
        self.cluster.apply({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [port]}})
        self.cluster.apply(endpoints("upstream", "shop", {"upstream": APPLICATION}, {"http": UPSTREAM_PORT}))
        listener = {"port": {"number": GATEWAY_PORT, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]}
        destination = {"host": "upstream.shop.svc.cluster.local", "port": {"number": 80}}
        self.cluster.apply(resource("Gateway", "ingress", "istio-system", {
            "selector": {"istio": "ingressgateway"}, "servers": [listener]}))
        self.cluster.apply(resource("VirtualService", "upstream", "shop", {
            "hosts": ["*"], "gateways": ["istio-system/ingress"], "http": [{"route": [{"destination": destination}]}]}))
        for kind in ["EnvoyFilter", "DestinationRule"]:
            self.cluster.apply(page_object("docs/with/istio.md", kind))

    def start_sidecar(self, namespace, labels):
        """Starts the sidecar of a workload: its inbound port forwards to the upstream."""
        ports = {(SIDECAR_PORT, "http", "HTTP"): UPSTREAM_PORT}
        self.cluster.apply(resource("Sidecar", "sidecar", namespace, inbound(labels, "127.0.0.1", ports)))
        self.sidecar = Proxy(self.cluster, "sidecar", "sidecar", "10.244.7.3", namespace, labels, 9)

    def address(self):
        """A client address without a counter."""
        return next(self.addresses)

    def ask(self, address=None, headers=None, port=GATEWAY_PORT):
        """Sends a request to a proxy from an address of this machine. The status has its reason."""
        source = (address or self.address(), 0)
        connection = http.client.HTTPConnection("127.0.0.1", port, PATIENCE, source)
        try:
            connection.request("GET", "/", headers=headers or {})
            reply = connection.getresponse()
            named = {name.lower(): value for name, value in reply.getheaders()}
            return Reply(f"{reply.status} {reply.reason}", named, reply.read())
        finally:
            connection.close()
