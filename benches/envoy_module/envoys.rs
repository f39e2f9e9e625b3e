//! The processes of the bench: an upstream, Sluicegate, and one Envoy for each filter.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::patiently;

const LIMITS: &str = "domain: shop\ndescriptors:\n- key: route\n  rate_limit: {unit: second, \
    requests_per_unit: 1000000, strategy: fixed_window, mode: leased, max_overshoot: 1000000}\n\
    - key: user\n  rate_limit: {unit: second, requests_per_unit: 1000000, strategy: fixed_window, \
    mode: leased, max_overshoot: 1000000}\n";

/// The filter of an Envoy.
#[derive(Clone, Copy)]
pub enum Case {
    Bare,
    Module,
    /// The module, on a route without limits: the cost of Envoy's interface.
    ModuleOff,
    RateLimit,
    LocalRateLimit,
}

pub struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _ended = self.0.wait();
    }
}

/// The processes that all Envoys share.
pub struct Machine {
    home: tempfile::TempDir,
    module: PathBuf,
    upstream: u16,
    grpc: u16,
    service: Running,
    _nginx: Running,
}

pub struct Envoy {
    process: Running,
    pub ingress: SocketAddr,
}

impl Envoy {
    pub fn id(&self) -> u32 {
        self.process.0.id()
    }
}

impl Machine {
    pub fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        let module = module();
        let (nginx, upstream) = nginx(home.path());
        let (service, grpc) = service(home.path());
        Self { home, module, upstream, grpc, service, _nginx: nginx }
    }

    pub fn service_id(&self) -> u32 {
        self.service.0.id()
    }

    pub fn envoy(&self, case: Case) -> Envoy {
        let home = self.home.path().join(case.name().replace([' ', ','], "-"));
        std::fs::create_dir_all(&home).unwrap();
        std::fs::write(home.join("envoy.yaml"), self.configuration(case)).unwrap();
        let installed = concat!(env!("CARGO_MANIFEST_DIR"), "/.tools/bin/envoy");
        let binary = std::env::var_os("SLUICEGATE_ENVOY").map_or(installed.into(), PathBuf::from);
        let mut command = Command::new(binary);
        command.arg("--config-path").arg(home.join("envoy.yaml"));
        command.arg("--admin-address-path").arg(home.join("admin"));
        command.args(["--use-dynamic-base-id", "--concurrency", "1", "--log-level", "error"]);
        command.env("ENVOY_DYNAMIC_MODULES_SEARCH_PATH", &self.module);
        let process = Running(command.spawn().unwrap());
        let admin: SocketAddr = patiently("Envoy's admin address", || {
            std::fs::read_to_string(home.join("admin")).ok()?.trim().parse().ok()
        });
        let ingress = patiently("Envoy's listener", || {
            let listeners = page(admin, "/listeners?format=json")?;
            let (_, rest) = listeners.split_once("\"port_value\":")?;
            rest.trim_start().split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        });
        Envoy { process, ingress: SocketAddr::from(([127, 0, 0, 1], ingress)) }
    }

    fn configuration(&self, case: Case) -> String {
        let filter = match case {
            Case::Bare => String::new(),
            Case::Module | Case::ModuleOff => MODULE.replace("GRPC_PORT", &self.grpc.to_string()),
            Case::RateLimit => RATE_LIMIT.to_owned(),
            Case::LocalRateLimit => LOCAL_RATE_LIMIT.to_owned(),
        };
        let actions = match case {
            Case::RateLimit => ACTIONS,
            Case::ModuleOff => ROUTE_OFF,
            Case::Bare | Case::Module | Case::LocalRateLimit => "",
        };
        CONFIGURATION
            .replace("FILTER", &filter)
            .replace("ACTIONS", actions)
            .replace("UPSTREAM_PORT", &self.upstream.to_string())
            .replace("GRPC_PORT", &self.grpc.to_string())
    }
}

impl Case {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bare => "none",
            Self::Module => "module",
            Self::ModuleOff => "module, off",
            Self::RateLimit => "ratelimit",
            Self::LocalRateLimit => "local_ratelimit",
        }
    }
}

/// Builds the module as it is shipped, and returns its directory.
fn module() -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--profile", "dist", "--locked", "-p", "sluicegate-envoy"]);
    assert!(cargo.status().unwrap().success());
    let target = std::env::current_exe().unwrap();
    target.ancestors().nth(3).unwrap().join("dist")
}

fn nginx(home: &Path) -> (Running, u16) {
    let port = free_port();
    let text = format!(
        "daemon off; worker_processes 1; pid {0}/nginx.pid; error_log stderr crit;\n\
         events {{ worker_connections 512; }}\n\
         http {{ access_log off; keepalive_requests 100000000; client_body_temp_path {0}/body; \
         proxy_temp_path {0}/proxy; fastcgi_temp_path {0}/fcgi; uwsgi_temp_path {0}/uwsgi; \
         scgi_temp_path {0}/scgi;\n\
         server {{ listen 127.0.0.1:{port}; location / {{ return 200 ok; }} }} }}\n",
        home.display()
    );
    let path = home.join("nginx.conf");
    std::fs::write(&path, text).unwrap();
    let process = Command::new("nginx").arg("-c").arg(&path).spawn().unwrap();
    let process = Running(process);
    patiently("nginx", || TcpStream::connect(("127.0.0.1", port)).ok());
    (process, port)
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Starts Sluicegate. Its limits are in a directory of their own, which it watches.
fn service(home: &Path) -> (Running, u16) {
    let limits = home.join("limits");
    std::fs::create_dir_all(&limits).unwrap();
    std::fs::write(limits.join("shop.yaml"), LIMITS).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    command.args(["serve", "--listen-host=127.0.0.1", "--telemetry-log-level=warn"]);
    for port in ["grpc", "http", "admin", "metrics", "peer"] {
        command.arg(format!("--listen-{port}-port=0"));
    }
    let mut process =
        command.arg("--limits-paths").arg(limits).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
    let grpc: SocketAddr =
        lines.find_map(|line| line.strip_prefix("grpc listening on ")?.parse().ok()).unwrap();
    lines.find(|line| line.starts_with("ready")).unwrap();
    // Reads the rest, so that the process can write.
    std::thread::spawn(move || lines.for_each(drop));
    (Running(process), grpc.port())
}

fn page(admin: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(admin).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

const MODULE: &str = r#"
          - name: sluicegate
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter
              dynamic_module_config: {name: sluicegate_envoy, do_not_close: true}
              filter_name: sluicegate_envoy
              filter_config:
                "@type": type.googleapis.com/google.protobuf.Struct
                value:
                  service: {address: "127.0.0.1:GRPC_PORT"}
                  domain: shop
                  deadline: 1s
                  failure: deny
                  headers: none
                  descriptors:
                    - - generic_key: {descriptor_key: route, descriptor_value: all}
                    - - request_headers: {header_name: x-user, descriptor_key: user}"#;

const RATE_LIMIT: &str = r#"
          - name: envoy.filters.http.ratelimit
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
              domain: shop
              timeout: 1s
              failure_mode_deny: true
              rate_limit_service:
                transport_api_version: V3
                grpc_service: {envoy_grpc: {cluster_name: sluicegate}}"#;

const LOCAL_RATE_LIMIT: &str = r#"
          - name: envoy.filters.http.local_ratelimit
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit
              stat_prefix: local
              token_bucket: {max_tokens: 1000000, tokens_per_fill: 1000000, fill_interval: 1s}
              filter_enabled: {default_value: {numerator: 100}}
              filter_enforced: {default_value: {numerator: 100}}"#;

const ACTIONS: &str = r"
                  rate_limits:
                  - actions: [{generic_key: {descriptor_key: route, descriptor_value: all}}]
                  - actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]";

const ROUTE_OFF: &str = r#"
                typed_per_filter_config:
                  sluicegate:
                    "@type": type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilterPerRoute
                    dynamic_module_config: {name: sluicegate_envoy, do_not_close: true}
                    per_route_config_name: sluicegate_envoy
                    filter_config:
                      "@type": type.googleapis.com/google.protobuf.Struct
                      value: {enabled: false}"#;

const CONFIGURATION: &str = r#"
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
static_resources:
  listeners:
  - address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: ingress
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {prefix: /}
                route:
                  cluster: upstreamACTIONS
          http_filters:FILTER
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
  - name: upstream
    connect_timeout: 1s
    load_assignment:
      cluster_name: upstream
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: UPSTREAM_PORT}}}}]}]
  - name: sluicegate
    connect_timeout: 1s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment:
      cluster_name: sluicegate
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: GRPC_PORT}}}}]}]
"#;
