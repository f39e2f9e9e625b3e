"""Envoy Gateway, Envoy, Redis, Sluicegate and an upstream, for gateway.py.

Envoy Gateway runs its Kubernetes provider on the API server of cluster.py. Envoy and the rate limit service run as it
configures them in its Deployments, in pods of pods.py.
"""

import copy
import json
import os
import pathlib
import re
import shutil

import yaml

from cluster import Cluster, documents, run
from pods import HOST, Network, Pod, inside
from processes import ROOT, TOOLS, Process, folder, get, until

SOURCE = pathlib.Path(os.environ["GATEWAY_SOURCE"])
PAGE = (ROOT / "docs/with/envoy-gateway.md").read_text()
OBJECTS = [one for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.S) for one in documents(block)]
SYSTEM = "envoy-gateway-system"
# The ports of Envoy, and those of the rate limit service.
TRAFFIC, DEBUG, METRICS, HEALTH = 8000, 6070, 19001, 8080


def of_page(kind, name):
    """An object of the page."""
    return copy.deepcopy(next(one for one in OBJECTS if one.get("kind") == kind and one["metadata"]["name"] == name))


def gateway_chart():
    """The objects of Envoy Gateway's chart, which the module has without its values."""
    chart = folder("gateway-chart") / "chart"
    shutil.copytree(SOURCE / "charts/gateway-helm", chart, copy_function=shutil.copyfile)
    values = (chart / "values.tmpl.yaml").read_text()
    for name, value in {"GatewayImage": "docker.io/envoyproxy/gateway:v1.9.1", "GatewayImagePullPolicy": "IfNotPresent"}.items():
        values = values.replace(f"${{{name}}}", value)
    (chart / "values.yaml").write_text(values)
    return documents(run(TOOLS / "helm", "template", "eg", chart, "--namespace", SYSTEM, "--include-crds"))


def configuration():
    """The page's configuration. Lua is for the tokens of gateway.py."""
    manifest = of_page("ConfigMap", "envoy-gateway-config")
    settings = yaml.safe_load(manifest["data"]["envoy-gateway.yaml"])
    manifest["data"]["envoy-gateway.yaml"] = json.dumps({**settings, "extensionApis": {"enableLua": True}})
    return manifest


def first(kind, objects):
    return next(one for one in objects if one["kind"] == kind)


class System:
    """Envoy Gateway, Envoy, Redis, the rate limit service and an upstream."""

    def __init__(self, policy):
        self.network = Network()
        self.cluster = Cluster(HOST, HOST)
        for name in (SYSTEM, "gate", "shop"):
            self.cluster.namespace(name)
        self.gateway = self.install_gateway()
        for manifest in documents((ROOT / "tests/control_planes/gateway.yaml").read_text()):
            self.cluster.apply(manifest)
        self.start_upstream()
        self.start_redis()
        self.cluster.apply(policy)
        self.gateway.start()
        self.service = self.pod("envoy-ratelimit", f"envoy-ratelimit.{SYSTEM}")
        self.envoy = self.pod("envoy")

    def install_gateway(self):
        """Applies the chart of Envoy Gateway with the page's configuration, and creates its certificates."""
        objects = gateway_chart()
        for manifest in objects:
            if manifest["kind"] == "CustomResourceDefinition":
                self.cluster.apply(manifest)
        for manifest in objects:
            if manifest["kind"] == "CustomResourceDefinition":
                until(lambda one=manifest: self.cluster.is_served(one), f"API of {manifest['metadata']['name']}")
        for manifest in [*objects, configuration()]:
            self.cluster.apply(manifest)
        certificates = Pod(self.cluster, self.network, first("Job", objects))
        certificates.start()
        certificates.wait()
        return Pod(self.cluster, self.network, first("Deployment", objects), f"envoy-gateway.{SYSTEM}")

    def start_upstream(self):
        address = self.network.attach("upstream")
        Process("upstream", inside("upstream", "python3", "-m", "http.server", "8080", "--directory", folder("files")))
        self.add_endpoints("upstream", "shop", address)

    def start_redis(self):
        self.network.attach("redis", "redis.data")
        settings = ["--dir", folder("redis"), "--appendonly", "yes", "--appendfsync", "always", "--protected-mode", "no"]
        self.redis = Process("redis", inside("redis", "redis-server", *settings))

    def install_sluicegate(self, **limit):
        """Installs the chart with the page's values and another limit, and runs one of its pods."""
        values = next(one for one in OBJECTS if "replicaCount" in one)
        text = values["limits"]["inline"]["edge.yaml"]
        file = self.cluster.home / "values.json"
        limits = yaml.safe_load(text)
        limits["descriptors"][0]["rate_limit"] |= limit
        file.write_text(json.dumps({**values, "limits": {"inline": {"edge.yaml": json.dumps(limits)}}}))
        code, output = self.cluster.helm(
            "install", "sluicegate", "charts/sluicegate", "--namespace=gate", f"--values={file}",
            while_running=lambda: self.cluster.end_jobs("gate", "SuccessCriteriaMet", "Complete"))
        assert code == 0, output
        metadata = {"name": "sluicegate", "namespace": "gate"}
        pod = Pod(self.cluster, self.network, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata})
        pod.start()
        until(lambda: get(8080, "/readyz", address=pod.address).status == 200, "ready service", pod.process)
        named = {port["name"]: port["containerPort"] for port in pod.container["ports"]}
        self.add_endpoints("sluicegate", "gate", pod.address, named)
        return pod

    def add_endpoints(self, service, namespace, address, named=None):
        """Does the part of the controller of endpoints, for a service with one pod."""
        ports = self.cluster.get("v1", "Service", service, namespace)["spec"]["ports"]
        targets = [{**port, "port": (named or {}).get(port["targetPort"], port["targetPort"])} for port in ports]
        self.cluster.apply({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": service, "namespace": namespace, "labels": {"kubernetes.io/service-name": service}},
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
            "ports": [{key: one[key] for key in ("name", "port", "appProtocol") if key in one} for one in targets],
        })

    def pod(self, name, service=None):
        """Starts a pod of a Deployment that Envoy Gateway creates."""
        path = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments?labelSelector=app.kubernetes.io/name={name}"
        found = until(lambda: self.cluster.call("GET", path)["items"], f"Deployment {name}", self.gateway.process)
        pod = Pod(self.cluster, self.network, {**found[0], "apiVersion": "apps/v1", "kind": "Deployment"}, service)
        pod.start()
        self.add_endpoints(pod.name, SYSTEM, pod.address)
        return pod

    def processes(self):
        return [pod.process for pod in (self.gateway, self.service, self.envoy)] + [self.redis, self.cluster.server]

    def send(self, host, key):
        """The status of the response to a request."""
        headers = {"host": host, "x-api-key": key}
        return get(TRAFFIC, "/", headers, self.envoy.address).status

    def limits(self):
        """The limits that the rate limit service has loaded."""
        return get(DEBUG, "/rlconfig", address=self.service.address).body.decode()

    def metric(self, name):
        text = get(METRICS, "/metrics", address=self.service.address).body.decode()
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.M)
        return float(found[1]) if found else 0

    def counters(self, client):
        """The counters of a client in Redis."""
        command = inside("redis", "redis-cli", "--raw")
        names = run(*command, "keys", f"*{client}_*").split()
        return {name: run(*command, "get", name).strip() for name in names}
