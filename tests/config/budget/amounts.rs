//! Laws of amounts as text.

use proptest::prelude::*;
use sluicegate::config::budget::BudgetUnit;
use sluicegate::config::budget_amount::{AmountError, AmountText, parse};
use sluicegate::kernel::budget::Amount;

/// The first amount that cannot be counted exactly.
const BOUND: u64 = 1 << 53;

const UNITS: [BudgetUnit; 4] = [
    BudgetUnit::Tokens,
    BudgetUnit::InputTokens,
    BudgetUnit::OutputTokens,
    BudgetUnit::Money(*b"usd"),
];

/// Amounts of all sizes, half of them round.
fn amounts() -> impl Strategy<Value = u64> {
    let round = (1..10_000_u64, 0..12_u32).prop_map(|(digits, zeros)| digits * 10_u64.pow(zeros));
    prop_oneof![1..BOUND, round, 1..2_000_000_u64]
}

proptest! {
    #[test]
    fn printed_amounts_parse_to_themselves(amount in amounts(), unit in 0..UNITS.len()) {
        let text = AmountText(Amount(amount), UNITS[unit]).to_string();
        prop_assert_eq!(parse(&text), Ok((Amount(amount), UNITS[unit])), "{}", text);
    }

    /// The text has all six decimals, so it is the amount in millionths, written another way.
    #[test]
    fn money_is_counted_in_millionths(amount in amounts()) {
        let text = format!("{}.{:06} EUR", amount / 1_000_000, amount % 1_000_000);
        let euro = BudgetUnit::Money(*b"eur");
        prop_assert_eq!(parse(&text), Ok((Amount(amount), euro)));
    }

    #[test]
    fn factors_are_powers_of_a_thousand(number in 1..9_000_u64, power in 0..4_u32) {
        let letter = ["", "k", "M", "G"][power as usize];
        let amount = number * 1_000_u64.pow(power);
        prop_assert_eq!(parse(&format!("{number}{letter} tokens")), Ok((Amount(amount), UNITS[0])));
        // One decimal more is a tenth of the factor.
        let tenth = parse(&format!("{number}.1{letter} tokens"));
        let expected = if power == 0 {
            Err(AmountError::TooFine)
        } else {
            Ok((Amount(amount + 1_000_u64.pow(power) / 10), UNITS[0]))
        };
        prop_assert_eq!(tenth, expected);
    }

    #[test]
    fn no_text_is_parsed_as_an_amount_out_of_range(text in "[0-9]{1,40}([.][0-9]{0,30})?[kMG]? (usd|tokens)") {
        if let Ok((Amount(amount), _)) = parse(&text) {
            prop_assert!((1..BOUND).contains(&amount), "{}", text);
        }
    }
}

#[test]
fn amounts_end_below_two_to_the_power_of_53() {
    let tokens = BudgetUnit::Tokens;
    assert_eq!(parse("9007199254740991 tokens"), Ok((Amount(BOUND - 1), tokens)));
    assert_eq!(parse("9007199254740992 tokens"), Err(AmountError::TooLarge));
    let usd = BudgetUnit::Money(*b"usd");
    assert_eq!(parse("9007199254.740991 usd"), Ok((Amount(BOUND - 1), usd)));
    assert_eq!(parse("9007199254.740992 usd"), Err(AmountError::TooLarge));
    assert_eq!(parse("0.000001 usd"), Ok((Amount(1), usd)));
    assert_eq!(parse("0.0000010 usd"), Ok((Amount(1), usd)));
    assert_eq!(parse("0.0000001 usd"), Err(AmountError::TooFine));
}

#[test]
fn amounts_are_printed_in_their_shortest_form() {
    let tokens = |amount| AmountText(Amount(amount), BudgetUnit::Tokens).to_string();
    assert_eq!(tokens(999), "999 tokens");
    assert_eq!(tokens(32_000), "32k tokens");
    assert_eq!(tokens(1_500_000), "1.5M tokens");
    assert_eq!(tokens(1_234_567), "1234567 tokens");
    assert_eq!(tokens(250_000_000), "250M tokens");
    let money = |amount| AmountText(Amount(amount), BudgetUnit::Money(*b"usd")).to_string();
    assert_eq!(money(500_000_000), "500 usd");
    assert_eq!(money(500_000), "0.50 usd");
    assert_eq!(money(12_345_678), "12.345678 usd");
    assert_eq!(money(10), "0.00001 usd");
}
