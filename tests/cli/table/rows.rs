//! The rows of a table on the admin port, the origin of amounts, and the wait for the first rows.

use std::fs;
use std::process::Stdio;

use serde_json::{Value, json};

use super::{Shop, said, table};
use crate::support::dice::{Dice, seed};
use crate::support::http1;
use crate::support::ports;
use crate::support::service::{Service, TOKEN, sluicegate};
use crate::support::waiting::until;

fn page(service: &Service, path: &str) -> Value {
    let token = format!("Bearer {TOKEN}");
    let reply = http1::get(service.admin, path, &[("authorization", &token)]).unwrap();
    serde_json::from_str(&reply.text()).unwrap_or_else(|_| reply.text().into())
}

#[test]
fn each_amount_of_an_id_names_its_origin() {
    let shop = Shop::new();
    shop.write(
        "id,plan,api,extra,until\nacme,gold,,,\nbeta,free,3,,2100-01-01T00:00:00Z\n\
         old,free,3,,2001-01-01T00:00:00Z\nplain,,,4,\nshut,gold,blocked,,\n",
    );
    let service = shop.start();
    let set = ["set", "customers", "beta", "api=unlimited", "--for", "1h", "--reason", "<b>"];
    let of = |id: &str| page(&service, &format!("/tables?table=customers&amounts_of={id}"));
    let null = Value::Null;
    for (id, amount, from, row, plan) in [
        ("acme", json!("5"), json!("plan"), null.clone(), json!("5")),
        ("beta", json!("3"), json!("row"), json!("3"), json!("1")),
        ("old", json!("1"), json!("plan"), json!("3"), json!("1")),
        ("plain", null.clone(), null.clone(), null.clone(), null.clone()),
        ("shut", json!("blocked"), json!("row"), json!("blocked"), json!("5")),
        ("nobody", null.clone(), null.clone(), null.clone(), null.clone()),
    ] {
        let api = &of(id)["amounts"][0];
        let shown = ["column", "amount", "from", "row", "plan"].map(|name| api[name].clone());
        assert_eq!(shown, [json!("api"), amount, from, row, plan], "{id}");
        assert_eq!((&api["limits"], &of(id)["has_ended"]), (&json!(1), &json!(id == "old")));
        let place = api["first_limits"][0].as_str().unwrap();
        assert!(place.ends_with("shop.yaml:3"), "{place}");
    }
    let extra = &of("plain")["amounts"][1];
    assert_eq!([&extra["amount"], &extra["limits"]], [&json!("4"), &json!(0)], "no limit reads it");
    assert_eq!(of("nobody")["row"], null);
    said(&table(&service, &set));
    let beta = of("beta");
    let api = &beta["amounts"][0];
    assert_eq!([&api["amount"], &api["from"]], ["unlimited", "set"]);
    assert_eq!([&api["set"]["reason"], &api["row"]], ["<b>", "3"]);
    assert_eq!(
        beta["row"],
        json!({"id": "beta", "plan": "free", "api": 3, "until": "2100-01-01T00:00:00Z"})
    );
    let unknown = page(&service, "/tables?table=customers&amount_of=beta");
    assert!(unknown.as_str().unwrap().contains("use table, id, amounts_of"), "{unknown}");
}

#[test]
fn a_list_has_the_first_ids_of_a_plan_in_order() {
    let shop = Shop::new();
    let seed = seed();
    let mut dice = Dice::new(seed);
    let plans = ["free", "gold"];
    let mut rows: Vec<_> =
        (0..500).map(|_| (format!("{:020}", dice.roll()), dice.pick(&plans))).collect();
    let lines: Vec<_> = rows.iter().map(|(id, plan)| format!("{id},{plan}\n")).collect();
    shop.write(&format!("id,plan\n{}", lines.concat()));
    let service = shop.start();
    rows.sort();
    for (plan, limit) in [("free", 1), ("gold", 7), ("free", 499), ("gold", 1_000)] {
        let of_plan: Vec<_> = rows.iter().filter(|(_, own)| *own == plan).collect();
        let first: Vec<_> =
            of_plan.iter().take(limit).map(|(id, plan)| json!({"id": id, "plan": plan})).collect();
        let list = page(&service, &format!("/tables?table=customers&plan={plan}&limit={limit}"));
        assert_eq!(list, json!({"count": of_plan.len(), "rows": first}), "{plan} {limit} {seed}");
    }
}

#[test]
fn readyz_and_the_log_name_the_missing_tables_and_their_errors() {
    let (shop, http, closed) = (Shop::new(), ports::free(), ports::free());
    let good = shop.dir.path().join("good.csv");
    fs::write(&good, "id\nacme\n").unwrap();
    let tables = json!([
        {"name": "customers", "source": format!("file://{}", shop.file.display())},
        {"name": "good", "source": format!("file://{}", good.display())},
        {"name": "partners", "source": format!("http://{closed}/rows?key=hush-hush")},
    ]);
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut command = sluicegate();
    command.args(["serve", "--store-url", "memory", "--tables", &tables.to_string()]);
    command.args(["--listen-http-port", &http.port().to_string()]);
    command.args(["--listen-grpc-port", "0", "--listen-admin-port", "0"]);
    command.args(["--listen-metrics-port", "0", "--limits-paths"]).arg(shop.limits());
    let mut process = command.stdout(Stdio::null()).stderr(log.reopen().unwrap()).spawn().unwrap();
    let named = until("the errors of both tables", || match http1::get(http, "/readyz", &[]) {
        Ok(reply)
            if reply.status == 503
                && reply.text().contains("No such file")
                && reply.text().contains("refused") =>
        {
            Ok(reply.text())
        }
        other => Err(format!("{other:?}")),
    });
    process.kill().unwrap();
    process.wait().unwrap();
    let (named, log) = (named.unwrap(), fs::read_to_string(log.path()).unwrap());
    let missing = "No such file or directory (os error 2)";
    let customers = format!("customers` is not loaded: {}: {missing}", shop.file.display());
    let start = format!("not ready: the table `{customers}; the table `partners` is not loaded: ");
    assert!(named.starts_with(&start) && named.lines().count() == 1, "{named}");
    assert!(!named.contains("good") && !named.contains("hush"), "{named}");
    assert!(log.contains("waiting for the first rows of the tables") && log.contains(missing));
    assert!(!log.contains("hush"), "{log}");
}
