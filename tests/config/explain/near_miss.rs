//! The nearest rule of a descriptor without a rule.

use sluicegate::config::descriptor_text::{borrow_entries, parse_entries};
use sluicegate::config::explain::near_miss::nearest_rule;
use sluicegate::kernel::units::Revision;

const BOOKSHOP: &str = "domain: bookshop
descriptors:
- key: CLIENT
  value: acme
  rate_limit: {unit: minute, requests_per_unit: 10}
  descriptors:
  - key: SVC
    value: billing
    rate_limit: {unit: minute, requests_per_unit: 2}
";

const SHOP: &str = "domain: shop
descriptors:
- key: PATH
  rate_limit: {unit: hour, requests_per_unit: 2}
- key: plan
  descriptors:
  - key: region
    value: eu
    rate_limit: {unit: hour, requests_per_unit: 2}
- key: tenant
  value: a
  rate_limit: {unit: hour, requests_per_unit: 2}
- key: tenant
  value: b*
- key: tenant
  value: c
- key: tenant
  value: d
";

fn nearest(domain: &str, descriptor: &str) -> Option<String> {
    let files = [("bookshop.yaml", BOOKSHOP.as_bytes()), ("shop.yaml", SHOP.as_bytes())];
    let (config, _) = sluicegate::config::load(files, Revision(1), false).unwrap();
    let entries = parse_entries(descriptor).unwrap();
    nearest_rule(&config, domain, &borrow_entries(&entries))
}

#[test]
fn hint_names_the_difference_to_the_nearest_rule() {
    for (domain, descriptor, expected) in [
        ("bookshop", "client=acme", "`CLIENT=acme` differs in case"),
        ("bookshop", "CLIENT=ACME", "`CLIENT=acme` differs in case"),
        ("bookshop", "CLIENT=acme,SVC=search", "this level has `SVC=billing`"),
        ("bookshop", "SVC=billing,CLIENT=acme", "a rule has the order `CLIENT=acme,SVC=billing`"),
        ("shop", "path=/pay", "`PATH` differs in case"),
        ("shop", "PATH=/pay,user=ann", "`shop.PATH` matches without `user=ann`"),
        ("shop", "plan=gold", "the next level has `region=eu`"),
        ("shop", "tenant=x", "this level has `tenant=a`, `tenant=b*`, `tenant=c` and 1 more"),
        (
            "shop",
            "tenent=a",
            "this level has the similar key `tenant=a`, `tenant=b*`, `tenant=c` and 1 more",
        ),
        ("shop", "zone=1", "this level has `PATH`, `plan`, `tenant=a` and 3 more"),
        ("Shop", "PATH=/pay", "the domain `shop` differs in case"),
        ("shopp", "PATH=/pay", "the domain `shop` is similar"),
        ("market", "PATH=/pay", "the files have `bookshop`, `shop`"),
    ] {
        assert_eq!(nearest(domain, descriptor).as_deref(), Some(expected), "{descriptor}");
    }
}

#[test]
fn matching_and_exempt_descriptors_have_no_nearest_rule() {
    for descriptor in ["PATH=/pay", "tenant=a", "tenant=c", "plan=x,region=eu"] {
        assert_eq!(nearest("shop", descriptor), None, "{descriptor}");
    }
}
