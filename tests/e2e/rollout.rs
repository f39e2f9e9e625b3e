//! Tests a rolling update with the Helm chart's settings behind a real Envoy, under load.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::envoy::{Envoy, Shipped, WhenDown, configured, replace_once};
use super::{Limits, Traffic, upstream};
use crate::chart::Installed;
use crate::support::http1;
use crate::support::service::Service;
use crate::support::waiting::{now, until};

/// The endpoint discovery file of Envoy, in place of a headless Kubernetes service.
struct Endpoints(PathBuf);

impl Endpoints {
    fn set_replicas(&self, replicas: &[SocketAddr]) {
        let mut text = "resources:\n- \"@type\": type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment\n  \
                        cluster_name: sluicegate\n  endpoints:\n  - lb_endpoints:\n"
            .to_owned();
        for it in replicas {
            let (ip, port) = (it.ip(), it.port());
            let at = format!("{{address: {ip}, port_value: {port}}}");
            let _ = writeln!(text, "    - endpoint: {{address: {{socket_address: {at}}}}}");
        }
        let next = self.0.with_extension("next");
        std::fs::write(&next, text).unwrap();
        std::fs::rename(next, &self.0).unwrap();
    }

    /// The shipped configuration of Envoy, with endpoint discovery from this file.
    fn configured(&self, upstream: SocketAddr) -> String {
        let any = SocketAddr::from(([127, 0, 0, 1], 1));
        let mut text = configured(Shipped::Rls, upstream, &[any], WhenDown::Deny);
        let at = text.find("      load_assignment:\n        cluster_name: sluicegate").unwrap();
        let end = at + text[at..].find("\n    - name: upstream").unwrap();
        text.replace_range(at..end, "");
        let path = self.0.display();
        let eds = format!(
            "headless service.\n      type: EDS\n      eds_cluster_config: {{eds_config: {{path_config_source: {{path: {path}}}}}}}"
        );
        replace_once(&mut text, "headless service.\n      type: STATIC", &eds);
        replace_once(&mut text, "\nadmin:\n", "\nnode: {id: edge, cluster: edge}\nadmin:\n");
        text
    }
}

/// Starts the service with the settings of the chart and waits for its readiness probe.
fn pod(chart: &Installed, limits: &Path) -> Service {
    let settings = ["--settings".to_owned(), chart.settings.path().display().to_string()];
    let service = Service::start(limits, &settings).unwrap();
    let ready = || match http1::get(service.http, &chart.readiness_path, &[]) {
        Ok(reply) if reply.status == 200 => Ok(()),
        other => Err(format!("{other:?}")),
    };
    until("readiness", ready).unwrap();
    service
}

fn wait_for_traffic(envoy: &Envoy, replica: SocketAddr, times: u64) {
    let enough = || match envoy.checks_sent_to(replica) {
        enough if times <= enough => Ok(()),
        few => Err(few.to_string()),
    };
    until("traffic to a replica", enough).unwrap();
}

#[test]
fn rolling_update_fails_no_request() {
    let chart = Installed::with_defaults();
    let limits = Limits::per_key(1_000_000_000);
    let home = tempfile::tempdir().unwrap();
    let endpoints = Endpoints(home.path().join("endpoints.yaml"));
    let mut pods: Vec<_> = (0..3).map(|_| pod(&chart, limits.path())).collect();
    let addresses = |pods: &[Service]| pods.iter().map(|pod| pod.grpc).collect::<Vec<_>>();
    endpoints.set_replicas(&addresses(&pods));
    let envoy = Envoy::start_with(endpoints.configured(upstream::start()), 3);
    let traffic = Traffic::new();
    traffic.run_during(&envoy, "busy", || {
        for _ in 0..3 {
            // maxSurge 1, maxUnavailable 0: a new pod is ready before an old one stops.
            let began = now();
            pods.push(pod(&chart, limits.path()));
            let start_time = began.elapsed();
            endpoints.set_replicas(&addresses(&pods));
            wait_for_traffic(&envoy, pods[3].grpc, 50);
            let mut leaving = pods.remove(0);
            wait_for_traffic(&envoy, leaving.grpc, 50);
            // Kubernetes removes the endpoint and stops the pod at the same time.
            leaving.terminate();
            endpoints.set_replicas(&addresses(&pods));
            let began = now();
            let status = leaving.ended().unwrap();
            assert_eq!(status.code(), Some(0), "{status}\n{}", leaving.log());
            // On a busy machine, the start of a pod is late, too.
            let grace = Duration::from_secs(chart.grace_seconds) + 10 * start_time;
            assert!(began.elapsed() < grace, "killed");
        }
        Traffic::wait_for(&traffic.admitted, 500);
    });
}
