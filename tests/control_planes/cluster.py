"""A Kubernetes API server with etcd, without nodes and controllers.

Guarantees:
- The API server validates, stores and serves objects as in a cluster, with role-based access control.
- `apply` fails for a field that the schema of the object does not have.

Not covered:
- No pod runs, and no controller changes an object. `end_jobs` ends Jobs instead.
"""

import functools
import json
import ssl
import subprocess
import urllib.error
import urllib.parse
import urllib.request

import yaml

from processes import PATIENCE, ROOT, TOOLS, Process, folder, free_ports, until

TOKEN = "token-of-the-tests"
SERVICES = "10.96.0.0/16,fd00:96::/112"


class Refused(Exception):
    """A request that the API server refused."""

    def __init__(self, status, message):
        super().__init__(f"{status}: {message}")
        self.status, self.message = status, message


class Cluster:
    """An API server on one address of this machine."""

    def __init__(self, address="127.0.0.1", advertised="10.0.0.1"):
        self.home = folder("cluster")
        self.address, self.advertised = address, advertised
        self.port, store, peer = free_ports(3)
        self.etcd = start_etcd(self.home, store, peer)
        self.server = self.start_server(store)
        self.kubeconfig = self.home / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(self.config()))
        self.paths = {}
        until(self.is_ready, "ready API server", self.etcd, self.server)

    def start_server(self, store):
        key = self.home / "accounts.key"
        run("openssl", "genrsa", "-out", key, "2048")
        (self.home / "tokens.csv").write_text(f"{TOKEN},admin,1,system:masters\n")
        return Process("kube-apiserver", [
            TOOLS / "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{store}", f"--cert-dir={self.home}/tls",
            f"--bind-address={self.address}", f"--secure-port={self.port}", f"--service-cluster-ip-range={SERVICES}",
            f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc", f"--token-auth-file={self.home}/tokens.csv",
            "--authorization-mode=RBAC", f"--advertise-address={self.advertised}", "--endpoint-reconciler-type=none",
            # No controller removes its finalizer.
            "--disable-admission-plugins=StorageObjectInUseProtection",
        ])

    def config(self):
        """The configuration of clients, for kubectl, Helm and other programs."""
        server = {"server": f"https://{self.address}:{self.port}", "insecure-skip-tls-verify": True}
        return {
            "apiVersion": "v1", "kind": "Config", "current-context": "tests",
            "clusters": [{"name": "tests", "cluster": server}],
            "users": [{"name": "tests", "user": {"token": TOKEN}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
        }

    def is_ready(self):
        try:
            return self.call("GET", "/readyz", raw=True) == b"ok"
        except Refused:
            return False

    def call(self, method, path, body=None, kind="application/json", raw=False):
        """Sends a request, and returns the object in the response."""
        request = urllib.request.Request(f"https://{self.address}:{self.port}{path}", method=method)
        request.add_header("authorization", f"Bearer {TOKEN}")
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("content-type", kind)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE, context=unverified()) as reply:
                text = reply.read()
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            raise Refused(error.code, text) from None
        return text if raw else json.loads(text)

    def path(self, manifest):
        """The path of an object."""
        version, kind, metadata = manifest["apiVersion"], manifest["kind"], manifest["metadata"]
        if (version, kind) not in self.paths:
            for resource in self.call("GET", base(version))["resources"]:
                if "/" not in resource["name"]:
                    self.paths[version, resource["kind"]] = (resource["name"], resource["namespaced"])
        plural, namespaced = self.paths[version, kind]
        inside = f"/namespaces/{metadata.get('namespace', 'default')}" if namespaced else ""
        return f"{base(version)}{inside}/{plural}/{metadata['name']}"

    def get(self, version, kind, name, namespace="default"):
        """An object, or None."""
        metadata = {"name": name, "namespace": namespace}
        try:
            return self.call("GET", self.path({"apiVersion": version, "kind": kind, "metadata": metadata}))
        except Refused as error:
            if error.status == 404:
                return None
            raise

    def apply(self, manifest, manager="tests"):
        """Server-side apply. Unknown fields, and fields of another manager, are errors."""
        query = urllib.parse.urlencode({"fieldManager": manager, "force": "false", "fieldValidation": "Strict"})
        return self.call("PATCH", f"{self.path(manifest)}?{query}", manifest, "application/apply-patch+yaml")

    def delete(self, manifest):
        return self.call("DELETE", f"{self.path(manifest)}?propagationPolicy=Background")

    def install(self, file):
        """Installs the resource definitions in a file, and waits until they are served."""
        definitions = [one for one in documents(file.read_text()) if one["kind"] == "CustomResourceDefinition"]
        for definition in definitions:
            self.apply(definition)
        for definition in definitions:
            until(lambda one=definition: self.is_served(one), f"API of {definition['metadata']['name']}", self.server)

    def is_served(self, definition):
        spec = definition["spec"]
        version = next(one["name"] for one in spec["versions"] if one["storage"])
        try:
            self.call("GET", f"/apis/{spec['group']}/{version}/{spec['names']['plural']}")
        except Refused:
            return False
        return True

    def namespace(self, name):
        """Creates a namespace, and the account that a controller would create in it."""
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        account = {"name": "default", "namespace": name}
        self.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})

    def objects(self, namespace):
        """All objects of a namespace by kind and name, except events and the records of Helm's releases."""
        found = {}
        versions = ["v1", *(one["preferredVersion"]["groupVersion"] for one in self.call("GET", "/apis")["groups"])]
        for version in versions:
            for resource in self.call("GET", base(version))["resources"]:
                if resource["namespaced"] and "list" in resource["verbs"] and resource["kind"] != "Event":
                    path = f"{base(version)}/namespaces/{namespace}/{resource['name']}"
                    for item in self.call("GET", path)["items"]:
                        found[f"{resource['kind']}/{item['metadata']['name']}"] = item
        return {name: item for name, item in found.items() if item.get("type") != "helm.sh/release.v1"}

    def end_jobs(self, namespace, *conditions):
        """Does the part of the Job controller: the conditions become true for each Job that has not ended."""
        for job in self.call("GET", f"/apis/batch/v1/namespaces/{namespace}/jobs")["items"]:
            if not job["status"].get("conditions"):
                now = job["metadata"]["creationTimestamp"]
                times = {"status": "True", "reason": "Tests", "lastProbeTime": now, "lastTransitionTime": now}
                job["status"] = {"startTime": now, "conditions": [{"type": one, **times} for one in conditions]}
                if "Complete" in conditions:
                    job["status"] |= {"completionTime": now, "succeeded": 1}
                self.call("PUT", f"{self.path({**job, 'apiVersion': 'batch/v1', 'kind': 'Job'})}/status", job)

    def helm(self, *arguments, while_running=lambda: None):
        """Runs Helm, and returns its exit code and its output."""
        command = [str(TOOLS / "helm"), f"--kubeconfig={self.kubeconfig}", *arguments]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as helm:
            while True:
                try:
                    return helm.wait(0.2), helm.stdout.read()
                except subprocess.TimeoutExpired:
                    while_running()


def start_etcd(home, port, peer):
    client, between = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer}"
    return Process("etcd", [
        TOOLS / "etcd", f"--data-dir={home}/etcd", "--unsafe-no-fsync",
        f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
        f"--listen-peer-urls={between}", f"--initial-advertise-peer-urls={between}",
        f"--initial-cluster=default={between}",
    ])


def base(version):
    return f"/api/{version}" if version == "v1" else f"/apis/{version}"


def documents(text):
    """The objects in YAML text."""
    return [one for one in yaml.safe_load_all(text) if one]


def run(*command):
    """The output of a command that must succeed."""
    done = subprocess.run([str(one) for one in command], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


@functools.cache
def unverified():
    """The API server has created its certificate itself. A new context reads all authorities of the machine."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
