//! Tests of the exchange of changes to actions between replicas.

use super::*;

fn at(seconds: u64) -> Nanos {
    Nanos::from_secs(seconds)
}

fn rule() -> TargetKey {
    TargetKey { domain: "d".into(), kind: ActionKind::ForceRule, name: "d.k".into() }
}

const DENY: ActionEffect = ActionEffect::Force(Verdict::Deny);
const ALLOW: ActionEffect = ActionEffect::Force(Verdict::Allow);

fn record(
    actions: &mut ReplicatedActions,
    effect: Option<(ActionEffect, u64)>,
    replica: &str,
    now: u64,
) -> bool {
    let author = ChangeAuthor { by: "alice", reason: "ticket 7", replica };
    let effect = effect.map(|(effect, until)| (effect, at(until)));
    actions.record(rule(), effect, author, at(now)).is_some()
}

/// Sends all changes of `from` to `to` as JSON. Returns the number of changes with an effect.
fn send_changes(from: &ReplicatedActions, to: &mut ReplicatedActions, now: u64) -> usize {
    let text = serde_json::to_string(&from.changes(at(now))).unwrap();
    let received: Vec<ActionChange> = serde_json::from_str(&text).unwrap();
    received.iter().filter(|change| to.apply_change(change, at(now))).count()
}

fn effects(actions: &ReplicatedActions, now: u64) -> Vec<ActionEffect> {
    let current = actions.actions_at(at(now));
    current.filter_map(|(_, change)| change.effect.map(|(effect, _)| effect)).collect()
}

#[test]
fn actions_start_and_end_on_all_replicas() {
    let [mut a, mut b, mut c] = [(); 3].map(|()| ReplicatedActions::default());
    assert!(record(&mut a, Some((DENY, 60)), "a", 0));
    send_changes(&a, &mut b, 1);
    send_changes(&b, &mut c, 2);
    assert_eq!([effects(&b, 59), effects(&c, 59)], [[DENY], [DENY]]);
    assert_eq!((effects(&b, 60), effects(&c, 60)), (vec![], vec![]), "expired");
    let (_, change) = c.actions_at(at(59)).next().unwrap();
    assert_eq!((&*change.by, &*change.reason), ("alice", "ticket 7"));
    assert!(record(&mut c, None, "c", 10));
    send_changes(&c, &mut a, 11);
    assert_eq!(effects(&a, 11), []);
    // A replica that missed the end does not restore the action.
    send_changes(&b, &mut a, 12);
    send_changes(&b, &mut c, 12);
    assert_eq!((effects(&a, 12), effects(&c, 12)), (vec![], vec![]));
}

#[test]
fn an_early_end_is_a_change_but_an_expiry_is_not() {
    let [mut a, mut b] = [(); 2].map(|()| ReplicatedActions::default());
    assert!(record(&mut a, Some((DENY, 60)), "a", 0));
    let sent = a.changes(at(1));
    assert!(b.apply_change(&sent[0], at(2)), "a new action");
    assert_eq!(send_changes(&a, &mut b, 3), 0, "a known action");
    // `b` received the change later, so it remembers it longer.
    let b_alone = 60 + REMEMBER_MARGIN.as_secs_ceil();
    assert_eq!((a.changes(at(b_alone)).len(), b.changes(at(b_alone)).len()), (0, 1));
    assert_eq!(send_changes(&b, &mut a, b_alone), 0, "an expired action");
    assert_eq!((a.changes(at(b_alone)).len(), effects(&a, b_alone)), (1, vec![]));
    let [mut c, mut d, mut new] = [(); 3].map(|()| ReplicatedActions::default());
    assert!(record(&mut c, Some((DENY, 60)), "c", 0));
    assert_eq!(send_changes(&c, &mut d, 1), 1);
    assert!(record(&mut c, None, "c", 10));
    assert_eq!(send_changes(&c, &mut d, 11), 1, "ends the action");
    assert_eq!(effects(&d, 11), []);
    assert_eq!(send_changes(&c, &mut new, 11), 0, "ends an unknown action");
}

#[test]
fn a_replaced_action_does_not_return_after_its_successor_expired() {
    let (mut a, mut cut_off) = (ReplicatedActions::default(), ReplicatedActions::default());
    record(&mut a, Some((DENY, 3_600)), "a", 0);
    send_changes(&a, &mut cut_off, 1);
    record(&mut a, Some((DENY, 20)), "a", 10);
    for now in [21, 200, 3_599] {
        send_changes(&cut_off, &mut a, now);
        assert_eq!(effects(&a, now), [], "{now}");
    }
    send_changes(&a, &mut cut_off, 3_000);
    assert_eq!(effects(&cut_off, 3_000), []);
}

#[test]
fn replicas_agree_on_simultaneous_changes() {
    let [mut a, mut b] = [(); 2].map(|()| ReplicatedActions::default());
    record(&mut a, Some((DENY, 60)), "a", 0);
    record(&mut b, Some((ALLOW, 60)), "b", 0);
    send_changes(&a, &mut b, 1);
    send_changes(&b, &mut a, 1);
    assert_eq!((effects(&a, 2), effects(&b, 2)), (vec![ALLOW], vec![ALLOW]), "the larger name");
}

#[test]
fn a_rule_and_its_keys_have_separate_actions() {
    let [mut a, mut b] = [(); 2].map(|()| ReplicatedActions::default());
    record(&mut a, Some((DENY, 60)), "a", 0);
    let boost = ActionEffect::Boost(BoostSize::Factor(2));
    let author = ChangeAuthor { by: "bob", reason: "sale", replica: "a" };
    for (kind, effect) in [(ActionKind::ForceKey, ALLOW), (ActionKind::BoostKey, boost)] {
        let target = TargetKey { domain: "d".into(), kind, name: "k=me".into() };
        assert!(a.record(target, Some((effect, at(60))), author, at(0)).is_some());
    }
    assert_eq!(send_changes(&a, &mut b, 1), 3);
    assert_eq!(effects(&b, 2), [DENY, ALLOW, boost]);
}

/// Otherwise, no operator could end an action whose message names a domain.
#[test]
fn all_limits_are_one_target_whatever_a_message_names() {
    let mut actions = ReplicatedActions::default();
    for (number, domain) in [(1, ""), (2, "shop"), (3, "other")] {
        let change = ActionChange {
            kind: "allow_everything".into(),
            domain: domain.into(),
            target: domain.into(),
            value: Some("allow".into()),
            left_ms: 60_000,
            known_ms: 120_000,
            number,
            ..ActionChange::default()
        };
        assert!(actions.apply_change(&change, at(0)), "{domain}");
    }
    assert_eq!(effects(&actions, 1), [ALLOW]);
    let author = ChangeAuthor { by: "alice", reason: "solved", replica: "a" };
    let everything = TargetKey::new(ActionKind::AllowEverything, "", "");
    assert!(actions.record(everything, None, author, at(1)).is_some());
    assert_eq!(effects(&actions, 2), []);
}

#[test]
fn changes_from_other_replicas_are_bounded() {
    let mut actions = ReplicatedActions::default();
    let change = |n: usize, domain: &str| ActionChange {
        domain: domain.into(),
        kind: "force_rule".into(),
        target: format!("d.k{n}").into(),
        value: Some("deny".into()),
        left_ms: u64::MAX,
        known_ms: u64::MAX,
        number: 1,
        replica: "b".into(),
        ..ActionChange::default()
    };
    let invalid = [
        change(0, &"d".repeat(MAX_TEXT_BYTES + RESERVED_BYTES)),
        ActionChange { number: u64::MAX, ..change(0, "d") },
        ActionChange { value: Some("wait".into()), ..change(0, "d") },
        ActionChange { kind: "other".into(), ..change(0, "d") },
    ];
    assert!(invalid.iter().all(|change| !actions.apply_change(change, at(0))));
    let applied = (0..1_000).filter(|n| actions.apply_change(&change(*n, "d"), at(0))).count();
    assert_eq!(applied, MAX_CHANGES + RESERVED_CHANGES);
    let max = MAX_ACTION_DURATION.as_secs_ceil();
    assert_eq!(effects(&actions, max), [], "no longer than the longest action");
    let later = MAX_ACTION_DURATION.plus(REMEMBER_MARGIN);
    assert!(actions.apply_change(&change(1_000, "d"), later), "expired changes make room");
}
