"""Envoys as workloads of a mesh of Istio.

pilot-agent starts a stock Envoy with the bootstrap of Istio's images. The configuration is from pilot-discovery, and so
is the certificate, for the token of a service account.

Not covered: Istio's own build of Envoy, and the capture of traffic by iptables.
"""

import json
import os
import pathlib
import re
import urllib.parse

from processes import TOOLS, Process, folder, get, until

DISCOVERY = "localhost:15012"
SOURCE = pathlib.Path(os.environ["ISTIO_SOURCE"])


class Proxy:
    """An Envoy and its pilot-agent, in the home directory of the workload. `at` makes its own ports different."""

    def __init__(self, cluster, name, kind, address, namespace, labels, at, account="default"):
        self.name, self.namespace, self.account = name, namespace, account
        self.admin, self.status = 15100 + at, 15200 + at
        self.home = folder(f"istio-{name}-home")
        self.write_identity(cluster)
        environment = {
            "POD_NAME": name, "POD_NAMESPACE": namespace, "INSTANCE_IP": address, "SERVICE_ACCOUNT": account,
            "ISTIO_META_CLUSTER_ID": "Kubernetes", "ISTIO_META_ISTIO_VERSION": "1.31.0",
            "ISTIO_METAJSON_LABELS": json.dumps(labels), "CA_ADDR": DISCOVERY, "PROXY_CONFIG": self.config(),
            "ENVOY_STATUS_PORT": str(15300 + at), "ENVOY_PROMETHEUS_PORT": str(15400 + at)}
        template = SOURCE / "tools/packaging/common/envoy_bootstrap.json"
        self.process = Process(f"istio-{name}-proxy", [
            "env", "-C", self.home, TOOLS / "pilot-agent", "proxy", kind, "--templateFile", template,
            "--concurrency", "1"], environment)
        until(lambda: get(self.admin, "/server_info").status == 200, "start of Envoy", self.process)

    def config(self, **more):
        """The content of the annotation `proxy.istio.io/config`."""
        return json.dumps({
            "discoveryAddress": DISCOVERY, "binaryPath": str(TOOLS / "envoy"), "proxyAdminPort": self.admin,
            "statusPort": self.status, "terminationDrainDuration": "1s",
            "proxyStatsMatcher": {"inclusionRegexps": [".*"]}, **more})

    def write_identity(self, cluster):
        """Writes the files that Kubernetes mounts into a container of Istio: a token, and the CA of the mesh."""
        secrets = self.home / "var/run/secrets"
        for directory in ["tokens", "istio"]:
            (secrets / directory).mkdir(parents=True)
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{self.account}/token"
        spec = {"audiences": ["istio-ca"]}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        (secrets / "tokens/istio-token").write_text(cluster.call("POST", path, request)["status"]["token"])
        ca = until(lambda: cluster.get("v1", "ConfigMap", "istio-ca-root-cert", self.namespace), "CA of the mesh")
        (secrets / "istio/root-cert.pem").write_text(ca["data"]["root-cert.pem"])

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
