"""Installs, upgrades, rolls back and uninstalls the chart with Helm, on a Kubernetes API server.

Guarantees:
- Strict server-side apply accepts every object of every preset, and of the chart's other test cases.
- An upgrade changes exactly the objects that its values are about; a rollback restores them.

Not covered:
- Pods do not run, so neither `helm test` nor `--wait`.
"""

import copy
import unittest

from cluster import Cluster, documents, run
from processes import ROOT, TOOLS

NAMESPACE, CLIENTS = "gate", "envoy-gateway-system"
REDIS = "--set=redis.external.url=redis://redis.data:6379/0"
WATCHED = "--set=metrics.serviceMonitor.enabled=true,metrics.prometheusRule.enabled=true,dashboards.enabled=true"
PRESETS = {path.stem: path for path in sorted((ROOT / "charts/sluicegate/values").glob("*.yaml"))}
# The presets without a URL of Redis.
OTHER_STORE = {"standalone", "postgres"}
LIMITS, SETTINGS, DEPLOYMENT = "ConfigMap/sluicegate-limits", "ConfigMap/sluicegate-settings", "Deployment/sluicegate"
CLAIM = "PersistentVolumeClaim/sluicegate-counters"
JOB = "Job/sluicegate-fleet-start"
SECRET = f"Secret/sluicegate-grpc-client of {CLIENTS}"

NEW_LIMITS = "--set-string=limits.inline.more\\.yaml=domain: more"
# More CPU is requested than allowed.
INVALID_DEPLOYMENT = "--set=resources.limits.cpu=100m"
UPGRADES = {
    WATCHED: [],
    NEW_LIMITS: [LIMITS],
    "--set=settings.telemetry.near_limit=75%": [SETTINGS, DEPLOYMENT],
    "--set=image.tag=0.1.1": [DEPLOYMENT],
    "--set=terminationGracePeriodSeconds=90": [DEPLOYMENT],
    "--set=service.metricsPort=9091": ["Service/sluicegate", "Service/sluicegate-headless"],
}
MORE_REPLICAS = "--set=replicaCount=4"
# Values that the schema refuses, the templates refuse, or the API server refuses.
REFUSED = {
    "--set=replicas=2": "additional properties 'replicas' not allowed",
    "--set=settings.stores.url=x": "additional properties 'stores' not allowed",
    "--set=terminationGracePeriodSeconds=1": "terminationGracePeriodSeconds is 1",
    INVALID_DEPLOYMENT: "must be less than or equal to cpu limit",
}
# The server sets these fields.
SERVER_FIELDS = ("resourceVersion", "managedFields", "generation", "uid", "creationTimestamp")


def flags(preset):
    store = [] if preset in OTHER_STORE else [REDIS]
    return ["charts/sluicegate", f"--values={PRESETS[preset]}", WATCHED, *store]


def upgrades(preset):
    """The values of upgrades, and the objects that they change."""
    # Envoy's pods get the new image of the module.
    module = {"--set=image.tag=0.1.1": [DEPLOYMENT, "EnvoyProxy/limits"]} if preset == "envoy-gateway-module" else {}
    several = {MORE_REPLICAS: [DEPLOYMENT]} if preset != "standalone" else {}
    return {**UPGRADES, **module, **several}


def versions(objects):
    return {name: item["metadata"]["resourceVersion"] for name, item in objects.items()}


def changed(before, after):
    """The names of the objects that were created, deleted or changed."""
    before, after = versions(before), versions(after)
    return [name for name in sorted(before | after) if before.get(name) != after.get(name)]


def content(objects):
    """The objects without the fields of the server."""
    objects = copy.deepcopy(objects)
    for item in objects.values():
        for field in SERVER_FIELDS:
            item["metadata"].pop(field, None)
    return objects


def template(objects):
    return objects[DEPLOYMENT]["spec"]["template"]


class Chart(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()
        for file in sorted((ROOT / ".tools/crds").glob("*.yaml")):
            if file.name.startswith(("monitoring.", "gateway.")):
                cls.cluster.install(file)
        for name in (NAMESPACE, CLIENTS):
            cls.cluster.namespace(name)

    def objects(self):
        """The objects in the namespaces of the release and of its clients."""
        clients = self.cluster.objects(CLIENTS)
        return self.cluster.objects(NAMESPACE) | {f"{name} of {CLIENTS}": item for name, item in clients.items()}

    def helm(self, command, *arguments, jobs=("SuccessCriteriaMet", "Complete"), code=0):
        """The output of a Helm command with this exit code."""
        found, output = self.cluster.helm(command, "sluicegate", f"--namespace={NAMESPACE}", *arguments,
                                          while_running=lambda: self.cluster.end_jobs(NAMESPACE, *jobs))
        self.assertEqual(found, code, output)
        return output

    def changes(self, command, *arguments, **options):
        """The names of the objects that a Helm command changes."""
        before = self.objects()
        self.helm(command, *arguments, **options)
        return changed(before, self.objects())

    def test_strict_apply_accepts_each_object(self):
        cases = {file.stem: file.read_text() for file in sorted((ROOT / "tests/golden/chart").glob("*.yaml"))}
        # Helm does not know the version of Kubernetes without a cluster.
        template = [TOOLS / "helm", "template", "edge", f"--namespace={NAMESPACE}", "--kube-version=1.36.3"]
        cases |= {preset: run(*template, *flags(preset)) for preset in PRESETS}
        for case, text in cases.items():
            for manifest in documents(text):
                with self.subTest(case, kind=manifest["kind"], name=manifest["metadata"]["name"]):
                    # Kubernetes 1.36 writes a claim once more at its second apply.
                    applied = [self.cluster.apply(manifest) for _ in range(3)][1:]
                    self.assertEqual(len({one["metadata"]["resourceVersion"] for one in applied}), 1)
                    self.cluster.delete(manifest)

    def test_upgrades_and_rollbacks_change_only_their_objects(self):
        for preset in PRESETS:
            with self.subTest(preset):
                self.helm("install", *flags(preset))
                for value, expected in upgrades(preset).items():
                    with self.subTest(value):
                        self.check_upgrade(flags(preset), value, expected)
                self.helm("uninstall")

    def check_upgrade(self, given, value, expected):
        before = self.objects()
        self.assertEqual(self.changes("upgrade", *given, value), sorted(expected))
        if value in (NEW_LIMITS, MORE_REPLICAS):
            self.assertEqual(template(self.objects()), template(before), "pods would restart")
        self.assertEqual(self.changes("rollback"), sorted(expected))
        self.assertEqual(content(self.objects()), content(before))

    def test_refused_values_change_nothing(self):
        self.helm("install", *flags("nginx"))
        before = self.objects()
        for value, reason in REFUSED.items():
            with self.subTest(value):
                self.assertIn(reason, self.helm("upgrade", *flags("nginx"), value, code=1))
                self.assertEqual(changed(before, self.objects()), [])
        self.helm("uninstall")

    def test_a_refused_object_leaves_other_changes_until_a_rollback(self):
        self.helm("install", *flags("nginx"))
        before = self.objects()
        self.assertEqual(self.changes("upgrade", *flags("nginx"), NEW_LIMITS, INVALID_DEPLOYMENT, code=1), [LIMITS])
        self.assertEqual(self.changes("rollback"), [LIMITS])
        self.assertEqual(content(self.objects()), content(before))
        self.helm("uninstall")

    def test_an_uninstallation_keeps_only_the_claim_for_the_next_one(self):
        for preset in PRESETS:
            with self.subTest(preset):
                empty = self.objects()
                self.helm("install", *flags(preset))
                self.helm("uninstall")
                self.assertEqual(changed(empty, self.objects()), [CLAIM] if preset == "standalone" else [])
        claim = self.objects()[CLAIM]
        self.helm("install", *flags("standalone"))
        self.assertEqual(self.objects()[CLAIM]["metadata"]["uid"], claim["metadata"]["uid"])
        self.helm("uninstall")
        self.cluster.delete({**claim, "apiVersion": "v1", "kind": "PersistentVolumeClaim"})

    def test_an_upgrade_renews_only_a_deleted_certificate(self):
        self.helm("install", *flags("envoy-gateway-module"))
        secret = self.objects()[SECRET]
        self.cluster.delete({**secret, "apiVersion": "v1", "kind": "Secret"})
        self.assertEqual(self.changes("upgrade", *flags("envoy-gateway-module")), [SECRET])
        renewed = self.objects()[SECRET]
        self.assertNotEqual(renewed["data"]["tls.crt"], secret["data"]["tls.crt"])
        self.assertEqual(renewed["data"]["ca.crt"], secret["data"]["ca.crt"])
        self.helm("uninstall")

    def test_only_an_installation_starts_the_fleet(self):
        """Also after a failed one: an upgrade would not run the Job."""
        empty = self.objects()
        self.helm("install", *flags("nginx"), jobs=("FailureTarget", "Failed"), code=1)
        self.assertEqual(changed(empty, self.objects()), [JOB])
        failed = self.objects()[JOB]
        self.helm("upgrade", "--install", *flags("nginx"))
        self.assertEqual(self.objects()[JOB], failed)
        self.helm("uninstall")
        self.assertEqual(changed(empty, self.objects()), [JOB])
        self.helm("install", *flags("nginx"))
        self.helm("uninstall")
        self.assertEqual(changed(empty, self.objects()), [])


if __name__ == "__main__":
    unittest.main(failfast=True, verbosity=2)
