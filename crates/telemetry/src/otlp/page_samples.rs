//! Parses a metrics page in Prometheus' text format, so that its metrics can be exported.
//!
//! Guarantees:
//! - A sample is found by its exact name.
//!
//! Not covered:
//! - The buckets of histograms.

use opentelemetry::KeyValue;

/// A metric family that is exported over OTLP, as a counter or a gauge.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ExportedFamily {
    pub(super) name: String,
    pub(super) help: String,
    pub(super) is_counter: bool,
}

/// Returns the metric families of a metrics page. A histogram becomes two families: its count and
/// its sum.
pub(super) fn parse_families(page: &str) -> Vec<ExportedFamily> {
    let mut found = Vec::new();
    let mut help = "";
    for line in page.lines() {
        if let Some((_, text)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' '))
        {
            help = text;
        }
        let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        else {
            continue;
        };
        let endings: &[&str] = if kind == "histogram" { &["_count", "_sum"] } else { &[""] };
        let family = |end: &&str| ExportedFamily {
            name: format!("{name}{end}"),
            help: help.to_owned(),
            is_counter: kind != "gauge",
        };
        found.extend(endings.iter().map(family));
    }
    found
}

pub(super) fn parse_samples(page: &str, name: &str) -> Vec<(Vec<KeyValue>, f64)> {
    page.lines().filter_map(|line| parse_sample(line.strip_prefix(name)?)).collect()
}

/// Parses the labels and the value of a sample: the rest of a line after the sample's name.
fn parse_sample(rest: &str) -> Option<(Vec<KeyValue>, f64)> {
    let (labels, value) = match rest.strip_prefix('{') {
        Some(rest) => parse_labels(rest)?,
        None => (Vec::new(), rest),
    };
    Some((labels, value.strip_prefix(' ')?.parse().ok()?))
}

/// Parses the labels of a sample up to the closing brace. Also returns the text after the brace.
fn parse_labels(mut rest: &str) -> Option<(Vec<KeyValue>, &str)> {
    let mut labels = Vec::new();
    loop {
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (key, quoted) = rest.split_once("=\"")?;
        let (value, after) = unquote_label(quoted)?;
        labels.push(KeyValue::new(key.to_owned(), value));
        rest = after.strip_prefix(',').unwrap_or(after);
    }
}

/// Removes the escapes of a label's value. Also returns the text after the closing quote.
fn unquote_label(text: &str) -> Option<(String, &str)> {
    let (mut value, mut chars) = (String::new(), text.chars());
    loop {
        match chars.next()? {
            '"' => return Some((value, chars.as_str())),
            '\\' => value.push(match chars.next()? {
                'n' => '\n',
                itself => itself,
            }),
            letter => value.push(letter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_samples_are_found_by_their_exact_name() {
        let page = "# HELP a_total Help.\n# TYPE a_total counter\na_total{x=\"1\",y=\"2\"} 3\na_total_more 4\n\
                    # HELP b Help.\n# TYPE b histogram\nb_bucket{le=\"1\"} 1\nb_sum 0.5\nb_count 1\n";
        let named: Vec<_> =
            parse_families(page).into_iter().map(|f| (f.name, f.is_counter)).collect();
        let wanted = [("a_total", true), ("b_count", true), ("b_sum", true)];
        assert_eq!(named, wanted.map(|(name, grows)| (name.to_owned(), grows)));
        let found = parse_samples(page, "a_total");
        assert_eq!(found, [(vec![KeyValue::new("x", "1"), KeyValue::new("y", "2")], 3.0)]);
        assert_eq!(parse_samples(page, "b_sum"), [(vec![], 0.5)]);
    }

    /// Prometheus' text format has the escapes `\\`, `\"` and `\n`, only in the values of labels.
    #[test]
    fn label_values_are_unescaped() {
        let page = r#"a{path="d.k_x,y"} 1
a{path="d.k_x,z"} 2
a{path="d.k_\\"} 3
a{path="d.k_\\n\n"} 4
a{path="\"q\"",verdict="={},"} 5
a{path="d.k_{1} 2",verdict="\"} 9"} 6
a{path=""} 7
"#;
        let labelled = |labels: &[(&'static str, &'static str)], value: f64| {
            let labels = labels.iter().map(|(key, text)| KeyValue::new(*key, *text));
            (labels.collect::<Vec<_>>(), value)
        };
        let wanted = [
            labelled(&[("path", "d.k_x,y")], 1.0),
            labelled(&[("path", "d.k_x,z")], 2.0),
            labelled(&[("path", r"d.k_\")], 3.0),
            labelled(&[("path", "d.k_\\n\n")], 4.0),
            labelled(&[("path", "\"q\""), ("verdict", "={},")], 5.0),
            labelled(&[("path", "d.k_{1} 2"), ("verdict", "\"} 9")], 6.0),
            labelled(&[("path", "")], 7.0),
        ];
        assert_eq!(parse_samples(page, "a"), wanted);
    }
}
