//! Test cases of the Helm chart: its presets, and others, which together set every chart value.

pub struct Case {
    pub name: &'static str,
    pub flags: &'static [&'static str],
}

const REDIS: &str = "redis.external.url=redis://redis.data:6379/0";

macro_rules! preset {
    ($name:literal) => {
        concat!("--values=charts/sluicegate/values/", $name, ".yaml")
    };
}

/// Each test case has a golden file with its rendered objects.
pub const CASES: &[Case] = &[
    Case { name: "default", flags: &[] },
    Case { name: "standalone", flags: &[preset!("standalone")] },
    Case { name: "envoy-gateway", flags: &[preset!("envoy-gateway"), "--set", REDIS] },
    Case {
        name: "envoy-gateway-module",
        flags: &[preset!("envoy-gateway-module"), "--set", REDIS],
    },
    Case { name: "istio", flags: &[preset!("istio"), "--set", REDIS] },
    Case { name: "nginx", flags: &[preset!("nginx"), "--set", REDIS] },
    Case { name: "postgres", flags: &[preset!("postgres")] },
    Case { name: "postgres_tls", flags: &["--values=tests/chart/values/postgres_tls.yaml"] },
    Case { name: "trial", flags: &["--values=tests/chart/values/trial.yaml"] },
    Case { name: "everything", flags: &["--values=tests/chart/values/everything.yaml"] },
    Case { name: "git", flags: &["--values=tests/chart/values/git.yaml"] },
    Case { name: "sentinel", flags: &["--values=tests/chart/values/sentinel.yaml"] },
    Case { name: "cluster", flags: &["--values=tests/chart/values/cluster.yaml"] },
    Case { name: "xds", flags: &["--values=tests/chart/values/xds.yaml"] },
    Case { name: "claim", flags: &["--values=tests/chart/values/claim.yaml"] },
    Case { name: "volume", flags: &["--values=tests/chart/values/volume.yaml"] },
    Case { name: "labels", flags: &["--values=tests/chart/values/labels.yaml"] },
    Case {
        name: "openshift",
        flags: &[
            "--values=tests/chart/values/openshift.yaml",
            "--set=redis.enabled=true,limits.gitSync.enabled=true",
            "--set=limits.gitSync.repository=https://git/x",
        ],
    },
    Case { name: "dual_stack", flags: &["--values=tests/chart/values/dual_stack.yaml"] },
    Case { name: "bare", flags: &["--values=tests/chart/values/bare.yaml"] },
];
