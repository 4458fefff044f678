use proptest::prelude::*;

use super::*;
use crate::id::Id;
use crate::query::RequestId;

fn price(text: &str) -> Price {
    text.parse().expect(text)
}

fn usd(text: &str) -> Money {
    text.parse().expect(text)
}

fn plain(input: &str, output: &str) -> ModelPrices {
    ModelPrices::new(Rates::new(price(input), price(output)), Vec::new())
}

/// Returns the prices of the example in the documentation.
fn example() -> ModelPrices {
    plain("0.0000002 USD/token", "0.0000006 USD/token")
}

fn tokens(input: u64, output: u64) -> TokenCounts {
    TokenCounts { input, output, kinds: TokenKinds::default() }
}

#[test]
fn twelve_query_856_context_and_145_output_tokens_cost_exactly_0_00026060() {
    let one = example().cost(&tokens(12 + 856, 145));
    assert_eq!(one, usd("0.00026060"));
    assert_eq!(one.as_nanos() * 500, usd("0.13030").as_nanos());
}

#[test]
fn each_kind_has_its_price_and_is_counted_once() {
    let rates = Rates {
        input: price("3 USD/1M"),
        output: price("15 USD/1M"),
        cached_input: price("0.30 USD/1M"),
        cache_write: price("3.75 USD/1M"),
        reasoning: price("20 USD/1M"),
    };
    let kinds = TokenKinds { cached_input: 600, cache_write: 300, reasoning: 50 };
    let tokens = TokenCounts { input: 1_000, output: 200, kinds };
    let prices = ModelPrices::new(rates, Vec::new());
    // 100 × 3 + 600 × 0.30 + 300 × 3.75 + 150 × 15 + 50 × 20 micro-dollars.
    assert_eq!(prices.cost(&tokens), usd("0.004855"));
    assert_eq!(prices.cost_at_most(&tokens), usd("0.005605"), "all of it may be thinking");
}

#[test]
fn a_long_context_has_its_own_prices_for_every_token() {
    let long = Rates::new(price("2.50 USD/1M"), price("15 USD/1M"));
    let longer = Rates::new(price("5 USD/1M"), price("30 USD/1M"));
    let rates = Rates::new(price("1.25 USD/1M"), price("10 USD/1M"));
    let prices = ModelPrices::new(
        rates,
        vec![
            PriceTier { above: 500_000, rates: longer },
            PriceTier { above: 200_000, rates: long },
        ],
    );
    assert_eq!(prices.cost(&tokens(200_000, 100)), usd("0.251"));
    assert_eq!(prices.cost(&tokens(200_001, 100)), usd("0.5015025"));
    assert_eq!(prices.cost(&tokens(500_001, 0)), usd("2.500005"));
}

#[test]
fn a_model_is_looked_up_by_name_then_pattern_then_in_the_import() {
    let [a, b, c, d, e] = ["1", "2", "3", "4", "5"].map(|dollars| {
        let text = format!("{dollars} USD/1M");
        plain(&text, &text)
    });
    let mut book = PriceBook::new(UnknownModels::Default(e.clone()));
    book.insert("gpt-*", b.clone());
    book.insert("gpt-?o*", c);
    book.insert("gpt-4", a.clone());
    book.import([("gpt-4".to_owned(), d.clone()), ("claude".to_owned(), d.clone())]);
    for (model, expected) in
        [("gpt-4", &a), ("gpt-4o-mini", &b), ("claude", &d), ("llama", &e), ("", &e)]
    {
        assert_eq!(book.of(model), Quote::Priced(expected), "{model}");
    }
}

fn asks(model: Option<&'static str>, input: Option<u64>) -> Query<'static> {
    let mut query = Query::new(RequestId::ours(Id::from_bits(1)));
    if let Some(model) = model {
        query.insert(MODEL, model).expect("a dimension");
    }
    query.cost.input_tokens = input;
    query
}

#[test]
fn an_unknown_model_is_never_free_by_accident() {
    let mut book = PriceBook::default();
    let refused = |book: &PriceBook, model, input| {
        book.expect(&asks(model, input)).expect_err("it has no price").to_string()
    };
    let message = "no price is known for the model \"new\": state the cost as usd, or add the \
                   model to prices in the configuration";
    assert_eq!(refused(&book, Some("new"), Some(10)), message);
    assert_eq!(book.expect(&asks(Some("new"), None)), Ok(None), "who keeps no prices settles");
    book.insert("old", example());
    assert_eq!(refused(&book, Some("new"), None), message);
    assert!(refused(&book, None, None).starts_with("no model is named"));
    let free = PriceBook::new(UnknownModels::Free);
    assert_eq!(free.expect(&asks(Some("new"), Some(10))), Ok(Some(Money::ZERO)));
    let priced = PriceBook::new(UnknownModels::Default(example()));
    assert_eq!(priced.expect(&asks(None, Some(10))), Ok(Some(usd("0.000002"))));
    assert_eq!(priced.expect(&asks(None, None)), Ok(None));
}

#[test]
fn max_tokens_1_beside_max_completion_tokens_10000_reserves_10000() {
    assert_eq!(capped([1, 10_000], 1), Some(10_000));
    assert_eq!(capped([1, 10_000], 4), Some(40_000));
    assert_eq!(capped([], 4), None);
    assert_eq!(capped([u64::MAX], 2), Some(EXACT_MAX));
}

proptest! {
    /// The reserved cost is an upper bound of the settled cost, for any number of reasoning tokens.
    #[test]
    fn the_estimate_is_never_less_than_the_cost(
        prices in prop::array::uniform5(0_u64..50_000),
        input in 0_u64..1_000_000, output in 0_u64..1_000_000,
        [cached, written, thought] in prop::array::uniform3(0_u64..=100),
    ) {
        let [a, b, c, d, e] = prices.map(|nanos| price(&format!("{nanos} USD/1M")));
        let rates = Rates { input: a, output: b, cached_input: c, cache_write: d, reasoning: e };
        let kinds = TokenKinds {
            cached_input: input * cached / 200,
            cache_write: input * written / 200,
            reasoning: output * thought / 100,
        };
        let tokens = TokenCounts { input, output, kinds };
        let prices = ModelPrices::new(rates, Vec::new());
        let (least, most) = (prices.cost(&tokens), prices.cost_at_most(&tokens));
        prop_assert!(least <= most, "{least} > {most}");
        let within = prices.output_within(&tokens, most);
        prop_assert!(within >= Some(output), "{within:?} < {output}");
    }
}
