"""A mesh of Istio: pilot-discovery at a Kubernetes API server, with Istio's webhooks.

The gateway is a stock Envoy with the node of an ingress gateway. Sluicegate has the Service, settings and limits that the
chart renders with its preset `istio`, and two replicas at a Redis. The objects of the documentation are read from its
pages. All of them run in a network of their own, on their usual ports.

Not covered: Istio's own build of Envoy, its sidecar injection, and mutual TLS.
"""

import copy
import http.client
import http.server
import json
import os
import pathlib
import re
import subprocess
import threading
import urllib.parse

import yaml

from cluster import Cluster, documents, run
from processes import PATIENCE, ROOT, TOOLS, Process, Reply, folder, get, until

PROGRAM = os.environ.get("CONTROL_PLANES_PROGRAM", ROOT / "target/debug/sluicegate")
CLUSTER = "outbound|8081||sluicegate.gate.svc.cluster.local"
UPSTREAM = "outbound|80||upstream.shop.svc.cluster.local"
ALLOWED, DENIED = "200 OK", "429 Too Many Requests"
XDS, READY, GATEWAY_PORT, SIDECAR_PORT, UPSTREAM_PORT = 15010, 8080, 80, 8000, 8001
REPLICAS, APPLICATION = ("10.244.7.11", "10.244.7.12"), "10.244.7.20"
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


def resource(kind, name, namespace, spec):
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "networking.istio.io/v1", "kind": kind, "metadata": metadata, "spec": spec}


def endpoints(name, namespace, addresses, ports):
    """The EndpointSlice that a controller would create for a Service."""
    return {
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": f"{name}-1", "namespace": namespace, "labels": {"kubernetes.io/service-name": name}},
        "ports": [{"name": name, "port": port, "protocol": "TCP"} for name, port in ports.items()],
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}} for address in addresses],
    }


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


class Proxy:
    """An Envoy as a workload of the mesh: its configuration is from pilot-discovery."""

    def __init__(self, name, kind, address, namespace, metadata, admin):
        self.name, self.admin = name, admin
        self.node = f"{kind}~{address}~{name}.{namespace}~{namespace}.svc.cluster.local"
        self.metadata = {"NAMESPACE": namespace, "INSTANCE_IPS": address, "CLUSTER_ID": "Kubernetes",
                         "ISTIO_VERSION": "1.31.0", **metadata}
        self.file = folder(f"istio-{name}") / "envoy.json"
        self.configure()
        arguments = [TOOLS / "envoy", "-c", self.file, "--concurrency", 1, "--disable-hot-restart"]
        self.process = Process(f"istio-{name}", arguments)

    def configure(self, **metadata):
        """Writes the bootstrap, with more metadata of the node."""
        http2 = {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}}}}
        endpoint = {"endpoint": {"address": socket_address(XDS)}}
        xds = {"name": "xds", "connect_timeout": "1s", "typed_extension_protocol_options": http2,
               "load_assignment": {"cluster_name": "xds", "endpoints": [{"lb_endpoints": [endpoint]}]}}
        ads = {"ads": {}, "resource_api_version": "V3"}
        stream = {"api_type": "DELTA_GRPC", "transport_api_version": "V3",
                  "grpc_services": [{"envoy_grpc": {"cluster_name": "xds"}}]}
        self.file.write_text(json.dumps({
            "node": {"id": self.node, "cluster": self.name, "metadata": {**self.metadata, **metadata}},
            "admin": {"address": socket_address(self.admin)},
            "dynamic_resources": {"lds_config": ads, "cds_config": ads, "ads_config": stream},
            "static_resources": {"clusters": [xds]},
        }))

    def stat(self, name):
        """The value of a counter or gauge; 0 before Envoy counts it."""
        path = "/stats?format=json&filter=" + urllib.parse.quote("^" + re.escape(name) + "$")
        found = [one["value"] for one in json.loads(get(self.admin, path).body)["stats"] if "value" in one]
        return found[0] if found else 0

    def dump(self, what):
        """The configuration that pilot-discovery has sent, as text."""
        return get(self.admin, "/config_dump?resource=" + what).body.decode()

    def cluster(self, name):
        clusters = json.loads(self.dump("dynamic_active_clusters")).get("configs", [])
        return next((one["cluster"] for one in clusters if one["cluster"]["name"] == name), None)


def socket_address(port):
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


class Mesh:
    """The processes and objects of the mesh. Each test asks from client addresses that no other test uses."""

    def __init__(self):
        self.addresses = (f"127.0.{third}.{last}" for third in range(1, 255) for last in range(1, 255))
        run("ip", "link", "set", "lo", "up")
        for address in [*REPLICAS, APPLICATION]:
            run("ip", "address", "add", f"{address}/32", "dev", "lo")
        self.cluster = Cluster()
        self.cluster.install(ROOT / ".tools/crds/customresourcedefinitions.gen.yaml")
        for namespace in ["istio-system", "gate", "shop"]:
            self.cluster.namespace(namespace)
        self.redis = Process("istio-redis", ["redis-server", "--save", "", "--port", 6379])
        server = http.server.ThreadingHTTPServer((APPLICATION, UPSTREAM_PORT), Upstream)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.start_replicas()
        self.start_pilot()
        self.apply_objects()
        labels = {"istio": "ingressgateway", "app": "istio-ingressgateway"}
        self.gateway = Proxy("gateway", "router", "10.244.7.2", "istio-system", {"LABELS": labels}, 15000)
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
        until(lambda: subprocess.run([PROGRAM, "fleet", "start", "--if-new", "--settings", settings],
                                     capture_output=True, check=False).returncode == 0, "start of the fleet", self.redis)
        self.replicas = [Process(f"istio-sluicegate-{at}", [
            PROGRAM, "serve", "--settings", settings, "--limits-paths", limits, "--listen-host", address,
            "--listen-admin-port", 0, "--listen-peer-port", 0, "--listen-drain-delay", "1s",
        ]) for at, address in enumerate(REPLICAS)]
        self.wait_for_replicas()
        service = chart["Service", "sluicegate"]
        self.cluster.apply(service)
        ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
        self.cluster.apply(endpoints("sluicegate", "gate", REPLICAS, ports))

    def wait_for_replicas(self):
        for process, address in zip(self.replicas, REPLICAS):
            until(lambda at=address: get(8080, "/readyz", address=at).status == 200, "ready replica", process)

    def start_pilot(self):
        """Starts pilot-discovery, then the webhooks of Istio's charts."""
        mesh = folder("istio-pilot") / "mesh.yaml"
        mesh.write_text(json.dumps({"enableTracing": False, "enableAutoMtls": False}))
        self.pilot = Process("istio-pilot", [
            TOOLS / "pilot-discovery", "discovery", "--kubeconfig", self.cluster.kubeconfig, "--meshConfig", mesh,
            "--namespace", "istio-system", "--httpAddr", f"127.0.0.1:{READY}", "--shutdownDuration", "1s"], PILOT)
        self.wait_for_pilot()
        charts = pathlib.Path(os.environ["ISTIO_SOURCE"]) / "manifests/charts"
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
        self.cluster.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "upstream", "namespace": "shop"},
                            "spec": {"ports": [port]}})
        self.cluster.apply(endpoints("upstream", "shop", [APPLICATION], {"http": UPSTREAM_PORT}))
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
        inbound = {"port": {"number": SIDECAR_PORT, "protocol": "HTTP", "name": "http"}, "bind": "127.0.0.1",
                   "captureMode": "NONE", "defaultEndpoint": f"127.0.0.1:{UPSTREAM_PORT}"}
        self.cluster.apply(resource("Sidecar", "sidecar", namespace, {
            "workloadSelector": {"labels": labels}, "ingress": [inbound], "egress": [{"hosts": ["gate/*"]}]}))
        self.sidecar = Proxy("sidecar", "sidecar", "10.244.7.3", namespace, {"LABELS": labels}, 15001)

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
