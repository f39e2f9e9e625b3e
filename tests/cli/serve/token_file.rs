//! Tests of `admin.token_file`: the token of the first start, and the commands that read it.

use std::fs;

use crate::support::service::{Service, sluicegate};

const LIMITS: &str =
    "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]\n";

fn console_line(service: &Service) -> &str {
    service.said.lines().find(|line| line.starts_with("console: ")).unwrap_or_default()
}

#[test]
fn only_the_first_start_prints_the_token_and_commands_read_it() {
    let folder = tempfile::tempdir().unwrap();
    let (limits, file) = (folder.path().join("limits"), folder.path().join("token"));
    fs::create_dir(&limits).unwrap();
    fs::write(limits.join("d.yaml"), LIMITS).unwrap();
    let flags = ["--admin-token-file".to_owned(), file.display().to_string()];
    let first = Service::start(&limits, &flags).unwrap();
    let token = fs::read_to_string(&file).unwrap();
    let link = format!("console: http://localhost:{}/console#token={token}", first.admin.port());
    assert_eq!(console_line(&first), link);
    drop(first);
    let second = Service::start(&limits, &flags).unwrap();
    assert!(!second.said.contains(&token), "{}", second.said);
    assert!(console_line(&second).ends_with(&format!("in {}", file.display())), "{}", second.said);
    let server = format!("http://{}", second.admin);
    for (variable, code) in [(Some(&file), 0), (None, 2)] {
        let mut command = sluicegate();
        command.args(["ask", "--force", "allow", "--scope", "everything", "--for", "1h"]);
        command.args(["--reason", "test", "--server", &server]);
        command.envs(variable.map(|path| ("SLUICEGATE_ADMIN_TOKEN_FILE", path)));
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
    }
    let mut show = sluicegate();
    show.args(["show", "/actions", "--server", &server]);
    let shown = show.env("SLUICEGATE_ADMIN_TOKEN_FILE", &file).output().unwrap();
    assert!(String::from_utf8_lossy(&shown.stdout).contains("everything"), "{shown:?}");
}

#[test]
fn a_token_in_a_variable_is_not_printed_and_creates_no_file() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("d.yaml"), LIMITS).unwrap();
    let file = folder.path().join("token");
    let flags = ["--admin-token-file".to_owned(), file.display().to_string()];
    let variable = [("SLUICEGATE_ADMIN_TOKEN", "open-sesame-please")];
    let service = Service::start_under(folder.path(), &flags, &variable).unwrap();
    assert_eq!(console_line(&service), "");
    assert!(!file.exists());
}
