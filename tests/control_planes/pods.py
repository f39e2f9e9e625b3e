"""Pods without a cluster: runs the first container of a Deployment or a Job on this machine.

Guarantees:
- A container has the command, arguments, environment and files of its object in the API server.
- Each pod has an address of its own, so that each container listens on its real ports.

Not covered:
- Images: the programs are this machine's. No user, probe, init container or sidecar.
- Services: their names resolve to the address of one pod.
"""

import base64
import os
import pathlib
import re
import shutil
import socket
import struct
import sys
import threading

from cluster import run
from processes import LOGS, PATIENCE, ROOT, TOOLS, Process, folder

HOST = "10.244.0.1"
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
PROGRAM = pathlib.Path(os.environ.get("CONTROL_PLANES_PROGRAM", ROOT / "target/debug/sluicegate"))
PROGRAMS = {
    "/bin/envoy": TOOLS / "envoy",
    "/bin/envoy-gateway": TOOLS / "envoy-gateway",
    "/bin/ratelimit": PROGRAM,
    "/bin/sluicegate": PROGRAM,
}
# The image of the gateway has this entrypoint.
ENTRYPOINTS = {"envoy-gateway": ["/bin/envoy-gateway"]}
# Mounts the system's directories and further ones below a root, and runs a command there.
CHROOT = """
set -e
root=$1; shift
for name in usr lib lib32 lib64 dev proc sys; do
    if [ -L /$name ]; then cp -P /$name "$root/"; elif [ -d /$name ]; then mount --rbind /$name "$root/$name"; fi
done
while [ "$1" != -- ]; do mount --bind "$1" "$root$2"; shift 2; done
shift
exec chroot "$root" /usr/bin/env -i "$@"
"""


def enter():
    """Starts this script again, with mounts and a network of its own. Needs root, or namespaces of users."""
    if os.environ.get("IN_NAMESPACES") != "yes":
        users = [] if os.geteuid() == 0 else ["--map-root-user"]
        os.environ["IN_NAMESPACES"] = "yes"
        os.execvp("unshare", ["unshare", *users, "--mount", "--net", sys.executable, *sys.argv])


class Network:
    """A bridge on this machine, and one network for each pod."""

    def __init__(self):
        self.services, self.count = {}, 1
        run("mount", "-t", "tmpfs", "none", "/run")
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "pods", "type", "bridge")
        run("ip", "address", "add", f"{HOST}/16", "dev", "pods")
        run("ip", "link", "set", "pods", "up")
        threading.Thread(target=self.answer_questions, daemon=True).start()

    def attach(self, name, service=None):
        """Adds the network of a pod, and returns its address. The service, `name.namespace`, resolves to it."""
        self.count += 1
        address, outside = f"10.244.0.{self.count}", f"veth{self.count}"
        run("ip", "netns", "add", name)
        run("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", outside, "master", "pods", "up")
        run("ip", "-n", name, "address", "add", f"{address}/16", "dev", "eth0")
        for device in ("lo", "eth0"):
            run("ip", "-n", name, "link", "set", device, "up")
        self.services[f"{service}.svc.cluster.local"] = address
        return address

    def answer_questions(self):
        """Does the part of the cluster's DNS server."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
            server.bind((HOST, 53))
            while True:
                question, sender = server.recvfrom(4096)
                server.sendto(answer(question, self.services), sender)


def answer(question, services):
    """A response with the IPv4 address of a service. RFC 1035, 4.1."""
    labels, at = [], 12
    while length := question[at]:
        labels.append(question[at + 1:at + 1 + length].decode())
        at += 1 + length
    address = services.get(".".join(labels).lower())
    found = [address] if address and question[at + 1:at + 3] == b"\0\x01" else []
    status = 0x8180 if address else 0x8183
    records = [b"\xc0\x0c\0\x01\0\x01\0\0\0\x05\0\x04" + socket.inet_aton(one) for one in found]
    return question[:2] + struct.pack(">5H", status, 1, len(found), 0, 0) + question[12:at + 5] + b"".join(records)


def inside(name, *command):
    """A command in the network of a pod."""
    return ["nsenter", f"--net=/run/netns/{name}", *command]


class Pod:
    """The first container of an object's pods."""

    def __init__(self, cluster, network, manifest, service=None):
        self.cluster, self.network = cluster, network
        self.manifest, self.name = manifest, manifest["metadata"]["name"]
        self.address = network.attach(self.name, service)
        self.home = folder(self.name)
        self.process = None

    def start(self):
        """Starts the container that the object describes now."""
        manifest = self.cluster.call("GET", self.cluster.path(self.manifest))
        self.namespace = manifest["metadata"]["namespace"]
        self.spec = manifest["spec"]["template"]["spec"]
        self.container = self.spec["containers"][0]
        self.environment = self.variables()
        root, mounts = self.root(), self.mounts()
        for target in mounts:
            (root / target[1:]).parent.mkdir(parents=True, exist_ok=True)
            place = root / target[1:]
            place.touch() if mounts[target].is_file() else place.mkdir(exist_ok=True)
        pairs = [part for target, source in mounts.items() for part in (source, target)]
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        self.process = Process(self.name, inside(
            self.name, "unshare", "--mount", "bash", "-c", CHROOT, "pod", root, *pairs, "--", *variables,
            *self.command()))

    def stop(self):
        self.process.stop()

    def restart(self):
        self.stop()
        self.start()

    def wait(self):
        """Waits until the program has succeeded."""
        code = self.process.process.wait(PATIENCE)
        assert code == 0, self.process.tail()

    def tail(self):
        return self.process.tail()

    def log(self):
        return (LOGS / f"{self.name}.log").read_text(errors="replace")

    def root(self):
        root = self.home / "root"
        shutil.rmtree(root, ignore_errors=True)
        for name in ("usr", "lib", "lib32", "lib64", "dev", "proc", "sys"):
            if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}"):
                (root / name).mkdir(parents=True)
        for name in ("bin", "etc", "tmp"):
            (root / name).mkdir(parents=True)
        (root / "etc/hosts").write_text(f"127.0.0.1 localhost\n{self.address} {self.name}\n")
        (root / "etc/nsswitch.conf").write_text("hosts: files dns\n")
        search = f"{self.namespace}.svc.cluster.local svc.cluster.local cluster.local"
        (root / "etc/resolv.conf").write_text(f"nameserver {HOST}\nsearch {search}\noptions ndots:5\n")
        return root

    def mounts(self):
        """The sources of the container's files, by path."""
        volumes = {volume["name"]: volume for volume in self.spec.get("volumes", [])}
        mounts = {target: source.resolve() for target, source in PROGRAMS.items() if source.exists()}
        for mount in self.container.get("volumeMounts", []):
            mounts[mount["mountPath"]] = self.volume(volumes[mount["name"]])
        if self.spec.get("automountServiceAccountToken", True):
            mounts[ACCOUNT] = self.account()
        return mounts

    def volume(self, volume):
        at = self.home / volume["name"]
        at.mkdir(exist_ok=True)
        if "configMap" in volume or "secret" in volume:
            place_files(at, self.files(volume))
        return at

    def files(self, volume):
        """The files of a volume, by name."""
        kind, source = ("ConfigMap", volume["configMap"]) if "configMap" in volume else ("Secret", volume["secret"])
        name = source.get("name") or source["secretName"]
        found = self.cluster.get("v1", kind, name, self.namespace)
        if found is None and source.get("optional"):
            return {}
        assert found, f"{self.name}: no {kind} {name} in {self.namespace}"
        data = {key: text.encode() for key, text in found.get("data", {}).items()}
        if kind == "Secret":
            data = {key: base64.b64decode(text) for key, text in data.items()}
        items = source.get("items") or [{"key": key, "path": key} for key in data]
        return {item["path"]: data[item["key"]] for item in items}

    def refresh(self):
        """Updates the files, as kubelet does after a change of a ConfigMap or a secret."""
        for volume in self.spec.get("volumes", []):
            self.volume(volume)

    def account(self):
        """The files of the service account."""
        at = self.home / "account"
        at.mkdir(exist_ok=True)
        account = self.spec["serviceAccountName"]
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{account}/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = self.cluster.call("POST", path, request)["status"]["token"]
        authority = (self.cluster.home / "tls/apiserver.crt").read_bytes()
        place_files(at, {"token": token.encode(), "ca.crt": authority, "namespace": self.namespace.encode()})
        return at

    def variables(self):
        values = {"PATH": "/bin:/usr/bin", "HOSTNAME": self.name,
                  "KUBERNETES_SERVICE_HOST": self.cluster.address, "KUBERNETES_SERVICE_PORT": str(self.cluster.port)}
        for variable in self.container.get("env", []):
            value = variable.get("value", "") if "valueFrom" not in variable else self.reference(variable["valueFrom"])
            values[variable["name"]] = expand(value, values)
        return values

    def reference(self, source):
        if "secretKeyRef" in source:
            reference = source["secretKeyRef"]
            secret = self.cluster.get("v1", "Secret", reference["name"], self.namespace)
            return base64.b64decode(secret["data"][reference["key"]]).decode()
        known = {"metadata.name": self.name, "metadata.namespace": self.namespace, "status.podIP": self.address}
        return known.get(source["fieldRef"]["fieldPath"], "")

    def command(self):
        program = self.container.get("command") or ENTRYPOINTS[self.container["name"]]
        return [expand(part, self.environment) for part in [*program, *self.container.get("args", [])]]


def expand(text, values):
    """Replaces each `$(NAME)` of a known variable."""
    return re.sub(r"\$\((\w+)\)", lambda match: values.get(match[1], match[0]), text)


def place_files(at, files):
    """Replaces the files of a directory in one step, by a symbolic link, as kubelet does."""
    version = f"..{len(list(at.iterdir()))}"
    (at / version).mkdir()
    for name, text in files.items():
        (at / version / name).write_bytes(text)
        if not (at / name).is_symlink():
            (at / name).symlink_to(f"..data/{name}")
    (at / "..new").symlink_to(version)
    (at / "..new").rename(at / "..data")
