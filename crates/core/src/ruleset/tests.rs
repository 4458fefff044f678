//! Tests of planning: from rules and queries to the keys that are charged.

use super::*;
use crate::decision::Decision;
use crate::id::Id;
use crate::money::Money;
use crate::price::{ModelPrices, Rates};
use crate::query::{Cost, RequestId};
use crate::rule::{EstimateMode, InlineRule, Pattern};
use crate::time::Timestamp;

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

fn limits(texts: &[&str]) -> Vec<Limit> {
    texts.iter().map(|text| text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))).collect()
}

fn rule(name: &str, limit: &str, per: &[&str]) -> Rule {
    Rule::new(name, limits(&[limit])).per(per)
}

fn query<'a>(dimensions: &[(&'a str, &'a str)]) -> Query<'a> {
    dimensions.iter().fold(Query::new(RequestId::ours(Id::from_bits(1))), |query, (name, value)| {
        query.with(*name, *value).expect("a valid dimension")
    })
}

fn ruleset(groups: Vec<Group>) -> Ruleset {
    Ruleset::new(groups, Settings::default()).unwrap_or_else(|errors| panic!("{errors:?}"))
}

fn keys(ruleset: &Ruleset, dimensions: &[(&str, &str)]) -> Vec<String> {
    let query = query(dimensions);
    let plan = ruleset.plan(&query, NOW).expect("a plan");
    plan.charges().iter().map(|charge| charge.key.to_string()).collect()
}

#[test]
fn the_partition_is_in_braces_where_a_rule_counts_by_it() {
    let rules = ["U", "UM", "M"].into_iter().zip([&["u"][..], &["u", "m"], &["m"]]);
    let groups = rules.map(|(name, per)| Group::new(name, [rule(name, "1/h", per)])).collect();
    let settings = Settings { partition: Some("u".to_owned()), ..Settings::default() };
    let rules = Ruleset::new(groups, settings).expect("rules");
    let found = keys(&rules, &[("u", "a}n{n"), ("m", "x")]);
    assert_eq!(found, ["U:{a%7Dn%7Bn}#requests", "UM:{a%7Dn%7Bn}:x#requests", "M:x#requests"]);
}

/// Returns the rules of an inference gateway: a limit per caller, per tenant and per model.
fn inference() -> Ruleset {
    let exactly = |value: &str| Pattern::exactly(value);
    ruleset(vec![
        Group::new(
            "caller",
            [
                rule("API_KEY_MODEL", "200/h", &["apiKey", "modelId"])
                    .when("apiKey", exactly("K1"))
                    .when("modelId", exactly("gpt4")),
                rule("USER_MODEL_INTERNAL", "1000/h", &["userId", "modelId"])
                    .when("clientType", exactly("INTERNAL")),
                rule("USER_MODEL", "100/h", &["userId", "modelId"]),
            ],
        ),
        Group::new(
            "tenant",
            [
                rule("TENANT_MODEL_TIER", "5000/h", &["tenantId", "modelTier"])
                    .when("modelTier", exactly("PREMIUM")),
                rule("TENANT_GLOBAL", "1000/h", &["tenantId"]),
            ],
        ),
        Group::new("model", [rule("GLOBAL_MODEL", "10000/h", &["modelId"])]),
    ])
}

#[test]
fn the_first_rule_of_each_group_applies() {
    let rules = inference();
    let user = [("userId", "u1"), ("modelId", "gpt4"), ("tenantId", "t1")];
    assert_eq!(
        keys(&rules, &user),
        ["USER_MODEL:u1:gpt4#requests", "TENANT_GLOBAL:t1#requests", "GLOBAL_MODEL:gpt4#requests"],
    );
    let premium = [&user[..], &[("modelTier", "PREMIUM")]].concat();
    assert_eq!(keys(&rules, &premium)[1], "TENANT_MODEL_TIER:t1:PREMIUM#requests");
    let internal = [&user[..], &[("clientType", "INTERNAL")]].concat();
    assert_eq!(keys(&rules, &internal)[0], "USER_MODEL_INTERNAL:u1:gpt4#requests");
}

#[test]
fn a_rule_needs_the_dimensions_that_it_counts_by() {
    let rules = inference();
    assert_eq!(
        keys(&rules, &[("userId", "u1"), ("modelId", "m")]),
        ["USER_MODEL:u1:m#requests", "GLOBAL_MODEL:m#requests"],
    );
    assert!(keys(&rules, &[("colour", "red")]).is_empty());
}

#[test]
fn an_api_key_never_reaches_a_counter() {
    let rules = inference();
    let keys = keys(&rules, &[("apiKey", "K1"), ("modelId", "gpt4")]);
    assert!(keys[0].starts_with("API_KEY_MODEL:"), "{keys:?}");
    assert!(!keys[0].contains("K1") && keys[0].len() > 40, "{keys:?}");
}

#[test]
fn a_required_dimension_can_not_be_left_out() {
    let rules = Ruleset::default_rules();
    let query = query(&[("userId", "u1")]);
    let error = rules.plan(&query, NOW).expect_err("modelId is required");
    assert_eq!(error.to_string(), "modelId: is required: name it in the request");
}

#[test]
fn a_query_that_some_group_has_no_rule_for_is_refused_by_the_name_of_the_dimension() {
    let groups = vec![
        Group::new(
            "caller",
            [rule("KEY", "9/h", &["apiKey", "modelId"]), rule("USER", "9/h", &["userId"])],
        ),
        Group::new("tenant", [rule("TENANT", "9/h", &["tenantId"])]),
    ];
    let settings = Settings { needs: needs(&groups, &[]), ..Settings::default() };
    let rules = Ruleset::new(groups, settings).expect("rules");
    let refused = |dimensions: &[(&str, &str)], rule_scope| {
        let mut query = query(dimensions);
        query.rule_scope = rule_scope;
        rules.plan(&query, NOW).err().map(|error| error.to_string())
    };
    for (dimensions, expected) in [
        (
            &[][..],
            "userId: is required: group caller has no rule for this request: name userId, or \
             apiKey and modelId",
        ),
        (
            &[("apiKey", "k")],
            "userId: is required: group caller has no rule for this request: name userId, or \
             apiKey and modelId",
        ),
        (
            &[("userId", "u")],
            "tenantId: is required: group tenant has no rule for a request without it: name it in \
             the request, or declare it optional in the configuration (dimensions: {tenantId: \
             optional})",
        ),
    ] {
        assert_eq!(refused(dimensions, RuleScope::Whole).as_deref(), Some(expected));
        assert_eq!(refused(dimensions, RuleScope::View), None, "a view need not be complete");
    }
    assert_eq!(refused(&[("userId", "u"), ("tenantId", "t")], RuleScope::Whole), None);
    let by_key = [("apiKey", "k"), ("modelId", "m"), ("tenantId", "t")];
    assert_eq!(refused(&by_key, RuleScope::Whole), None);
}

#[test]
fn a_made_up_value_is_no_way_around_the_limit_of_a_dimension_that_is_left_out() {
    let groups = vec![Group::new(
        "caller",
        [
            rule("KEY", "9/h", &["apiKey"]).when("apiKey", Pattern::exactly("K1")),
            rule("USER", "9/h", &["userId"]),
        ],
    )];
    let refused = |optional: &[&str], dimensions: &[(&str, &str)]| {
        let optional: Vec<_> = optional.iter().map(|&name| name.to_owned()).collect();
        let needs = needs(&groups, &optional);
        let settings = Settings { needs, optional, ..Settings::default() };
        let rules = Ruleset::new(groups.clone(), settings).expect("rules");
        let query = query(dimensions);
        rules.plan(&query, NOW).err().map(|error| error.to_string())
    };
    assert_eq!(refused(&[], &[("apiKey", "K1")]), None);
    assert_eq!(refused(&[], &[("apiKey", "made up"), ("userId", "u")]), None);
    let expected =
        "userId: is required: group caller has no rule for this request: name apiKey, or userId";
    assert_eq!(refused(&[], &[("apiKey", "made up")]).as_deref(), Some(expected));
    assert_eq!(refused(&["apiKey"], &[("apiKey", "made up")]).as_deref(), Some(expected));
    assert_eq!(refused(&["userId"], &[("apiKey", "made up")]), None, "callers may leave it out");
}

#[test]
fn windows_of_one_log_share_a_counter_and_other_limits_have_their_own() {
    let texts =
        ["5/5s", "20/min", "25/s burst 9", "900 tokens/min", "5.00 USD/day", "3 concurrent"];
    let rules = ruleset(vec![Group::new("g", [Rule::new("R", limits(&texts)).per(&["u"])])]);
    assert_eq!(
        keys(&rules, &[("u", "x")]),
        ["R:x#requests", "R:x#requests~s", "R:x#tokens/min", "R:x#USD/day", "R:x#concurrent"],
    );
    let query = query(&[("u", "x")]);
    let plan = rules.plan(&query, NOW).expect("a plan");
    let scopes: Vec<_> = plan.scopes().map(|(_, limit)| limit.to_string()).collect();
    assert_eq!(
        scopes,
        ["5/5s", "20/min", "25/s burst 9", "900 tokens/min", "5.00 USD/day", "3 concurrent"]
    );
    assert_eq!(plan.slack, Span::from_millis(10));
    assert!(plan.needs_record());
}

#[test]
fn costs_become_amounts_by_unit() {
    let texts = ["9/s", "900 tokens/min", "800 input_tokens/min", "5.00 USD/day"];
    let strict = Rule::new("S", limits(&texts));
    let optimistic = Rule { mode: EstimateMode::Optimistic, ..Rule::new("O", limits(&texts)) };
    let rules = ruleset(vec![Group::new("s", [strict]), Group::new("o", [optimistic])]);
    let mut query = query(&[]);
    let money = Some(Money::ZERO);
    query.cost = Cost { requests: Some(2), input_tokens: Some(30), money, ..Cost::default() };
    let plan = rules.plan(&query, NOW).expect("a plan");
    let amounts: Vec<_> = plan.charges().iter().map(|c| (c.need, c.take)).collect();
    assert_eq!(amounts, [(2, 2), (30, 30), (30, 30), (1, 0), (1, 2), (1, 30), (1, 30), (1, 0)],);
}

#[test]
fn shadow_rules_are_charged_and_do_not_end_the_search() {
    let shadow = Rule { shadow: true, ..rule("NEW", "1/h", &["u"]) };
    let rules = ruleset(vec![Group::new("g", [shadow, rule("OLD", "9/h", &["u"])])]);
    assert_eq!(keys(&rules, &[("u", "x")]), ["NEW:x#requests", "OLD:x#requests"]);
}

#[test]
fn a_literal_key_is_taken_as_it_is_written() {
    let literal = Rule {
        key: Some("ziraai:worker:ratelimit:<provider>".to_owned()),
        ..rule("WORKER", "500/min", &["provider"])
    };
    let rules = ruleset(vec![Group::new("g", [literal])]);
    assert_eq!(keys(&rules, &[("provider", "gemini")]), ["ziraai:worker:ratelimit:gemini"]);
    assert_eq!(keys(&rules, &[("provider", "a:b")]), ["ziraai:worker:ratelimit:a%3Ab"]);
}

#[test]
fn a_gate_lies_beside_the_counter_of_its_rule() {
    let literal = Rule {
        key: Some("ziraai:worker:<provider>".to_owned()),
        ..rule("WORKER", "500/min", &["provider"])
    };
    let route = rule("ROUTE", "25/s", &["tenant", "@route"]);
    let rules = ruleset(vec![
        Group::new("worker", [literal.gated()]),
        Group::new("route", [route.gated()]),
    ]);
    let mut query = query(&[("provider", "gemini"), ("tenant", "t")]);
    query.insert_own("@route", "nivoda/graphql");
    let plan = rules.plan(&query, NOW).expect("a plan");
    let charges: Vec<_> =
        plan.charges().iter().map(|c| (c.key.to_string(), c.need, c.take)).collect();
    let charges: Vec<_> = charges.iter().map(|(key, need, take)| (&**key, *need, *take)).collect();
    assert_eq!(
        charges,
        [
            ("ziraai:worker:gemini", 1, 1),
            ("{ziraai:worker:gemini}#closed", 1, 0),
            ("ROUTE:t:{nivoda%2Fgraphql}#requests", 1, 1),
            ("ROUTE:t:{nivoda%2Fgraphql}#closed", 1, 0),
        ]
    );
}

fn override_of(rule: &str, id: u128, when: &[(&str, &str)], texts: &[&str]) -> Override {
    Override {
        id: Id::from_bits(id),
        rule: rule.to_owned(),
        when: when.iter().map(|(d, text)| ((*d).to_owned(), Pattern::from_text(*text))).collect(),
        limits: limits(texts),
        since: Timestamp::from_secs(id as u64),
        until: None,
    }
}

fn limits_of(rules: &Ruleset, dimensions: &[(&str, &str)]) -> Vec<String> {
    let query = query(dimensions);
    let plan = rules.plan(&query, NOW).expect("a plan");
    plan.scopes().map(|(charge, limit)| format!("{} {limit}", charge.key)).collect()
}

#[test]
fn the_newest_override_that_fits_gives_the_limits_and_the_rule_the_counter() {
    let rules = ruleset(vec![Group::new("g", [rule("USER", "10/min", &["u"])])]);
    let rules = rules.with_overrides(&[
        override_of("USER", 1, &[("u", "premium_*")], &["100/min"]),
        override_of("USER", 2, &[("u", "premium_ann")], &["500/min", "9000/h"]),
        override_of("USER", 3, &[("u", "bob"), ("plan", "gold")], &[]),
    ]);
    assert_eq!(rules.ineffective_overrides(), []);
    assert_eq!(limits_of(&rules, &[("u", "ann")]), ["USER:ann#requests 10/min"]);
    assert_eq!(limits_of(&rules, &[("u", "premium_x")]), ["USER:premium_x#requests 100/min"]);
    assert_eq!(
        limits_of(&rules, &[("u", "premium_ann")]),
        ["USER:premium_ann#requests 500/min", "USER:premium_ann#requests 9000/h"]
    );
    assert_eq!(limits_of(&rules, &[("u", "bob")]), ["USER:bob#requests 10/min"]);
    assert_eq!(limits_of(&rules, &[("u", "bob"), ("plan", "gold")]), [""; 0]);
}

#[test]
fn an_override_without_a_rule_is_reported_and_has_no_effect() {
    let literal = Rule { key: Some("k:<u>".to_owned()), ..rule("LITERAL", "10/min", &["u"]) };
    let rules = ruleset(vec![Group::new("g", [literal])]);
    let rules = rules.with_overrides(&[
        override_of("GONE", 1, &[], &["5/s"]),
        override_of("LITERAL", 2, &[], &["5/s", "100 tokens/s"]),
    ]);
    let reasons: Vec<_> =
        rules.ineffective_overrides().iter().map(|(_, error)| error.to_string()).collect();
    assert_eq!(
        reasons,
        [
            "rule LITERAL: key: a literal key holds one counter, but these limits need 2: split the rule",
            "rule GONE: unknown rule: use the name of a rule in the configuration",
        ]
    );
    assert_eq!(limits_of(&rules, &[("u", "x")]), ["k:x 10/min"]);
    let rules = rules.with_overrides(&[]);
    assert_eq!(limits_of(&rules, &[("u", "x")]), ["k:x 10/min"]);
}

#[test]
fn a_query_can_bring_its_own_limit() {
    let rules = inference();
    let mut query = query(&[("modelId", "m")]);
    query.inline.push(InlineRule::new("OVERRIDE", "a:b", limits(&["7/min"])).expect("inline"));
    let plan = rules.plan(&query, NOW).expect("a plan");
    let keys: Vec<_> = plan.charges().iter().map(|c| c.key.to_string()).collect();
    assert_eq!(keys, ["GLOBAL_MODEL:m#requests", "~inline:a%3Ab#requests"]);
}

#[test]
fn plans_of_one_call_are_one_plan() {
    let rules = inference();
    let (one, two) = (query(&[("modelId", "m"), ("userId", "a")]), [query(&[("modelId", "m")])]);
    let plan = rules.plan_together(&one, &two, NOW).expect("a plan");
    let places = [plan.query_charges(0), plan.query_charges(1)].map(|part| part.charges.to_vec());
    assert_eq!(places, [vec![0, 1], vec![1]]);
    let amounts: Vec<_> = plan.charges().iter().map(|c| (c.key.to_string(), c.take)).collect();
    let expected = [("USER_MODEL:a:m#requests", 1), ("GLOBAL_MODEL:m#requests", 2)];
    assert_eq!(amounts, expected.map(|(key, take)| (key.to_owned(), take)));
}

#[test]
fn the_strictest_policy_of_one_plan_holds_also_on_a_counter_that_is_shared() {
    let shared = |name: &str, user: &str, outage| Rule {
        key: Some("shared".to_owned()),
        outage: Some(outage),
        ..rule(name, "5/s", &[]).when("u", Pattern::exactly(user))
    };
    let rules = [shared("A", "a", OutagePolicy::Open), shared("B", "b", OutagePolicy::Closed)];
    let rules = Ruleset::new(vec![Group::new("g", rules)], Settings::default()).expect("rules");
    let (a, b) = (query(&[("u", "a")]), [query(&[("u", "b")])]);
    assert_eq!(rules.plan(&a, NOW).expect("a plan").outage, OutagePolicy::Open);
    let plan = rules.plan_together(&a, &b, NOW).expect("a plan");
    assert_eq!((plan.charges().len(), plan.outage), (1, OutagePolicy::Closed));
}

#[test]
fn more_requests_than_a_log_takes_are_refused() {
    let rules = inference();
    let mut query = query(&[("modelId", "m")]);
    query.cost.requests = Some(1_001);
    let error = rules.plan(&query, NOW).expect_err("too many").to_string();
    assert!(error.contains("GLOBAL_MODEL") && error.contains("at most 1000"), "{error}");
}

#[test]
fn every_mistake_is_reported_at_once() {
    let template = |name: &str, key: &str, limit: &str, per: &[&str]| Rule {
        key: Some(key.to_owned()),
        ..rule(name, limit, per)
    };
    let groups = vec![
        Group { effective: true, ..Group::new("a", []) },
        Group {
            effective: true,
            ..Group::new(
                "b",
                [
                    Rule::new("NONE", []),
                    rule("TWIN", "5/s", &[]),
                    rule("TWIN", "5/s", &[]),
                    rule("", "5/s", &[]),
                    Rule::new("SAME", limits(&["5/s", "9/1000ms"])),
                    Rule::new("SAME_BUCKET", limits(&["5/s burst 2", "6/s burst 3"])),
                    template("OPEN", "a:<b", "5/s", &[]),
                    template("MERGED", "a:<b>", "5/s", &["b", "c"]),
                    Rule {
                        key: Some("k".into()),
                        ..Rule::new("CELLS", limits(&["5/s", "5 tokens/s"]))
                    },
                    template("ONE", "shared", "5/s", &[]),
                    template("TWO", "shared", "6/s", &[]),
                    rule("EMPTY", "5/s", &[]).when("x", Pattern::OneOf(Vec::new())),
                    Rule { lease: Span::ZERO, ..rule("LEASE", "5 concurrent", &[]) },
                ],
            )
        },
    ];
    let errors = Ruleset::new(groups, Settings::default()).expect_err("mistakes");
    let text: Vec<_> = errors.iter().map(ToString::to_string).collect();
    for part in [
        "group a: has no rules",
        "group b: only one group can be effective, and a already is",
        "rule NONE: has no limit",
        "rule TWIN: this name is already used",
        "rule : a name must have 1 to 64 bytes",
        "rule SAME: 5/s and 9/s limit the same window",
        "rule SAME_BUCKET: 5/s burst 2 and 6/s burst 3 limit the same window",
        "rule OPEN: key: \"a:<b\" is not a template",
        "rule MERGED: key: \"a:<b>\" leaves out c",
        "rule CELLS: key: a literal key holds one counter, but these limits need 2",
        "rule TWO: key: \"shared\" is also the key of rule ONE",
        "rule EMPTY: when x: an empty list matches nothing",
        "rule LEASE: lease: must not be zero",
    ] {
        assert!(text.iter().any(|error| error.starts_with(part)), "{part}\n{text:#?}");
    }
    assert_eq!(text.len(), 13, "{text:#?}");
}

#[test]
fn only_rules_that_can_match_are_looked_at() {
    let mut rules: Vec<_> = (0..1_000)
        .map(|n| {
            rule(&format!("K{n}"), "5/s", &["apiKey"])
                .when("modelId", Pattern::exactly("gpt4"))
                .when("apiKey", Pattern::OneOf(vec![format!("k{n}"), format!("l{n}")]))
        })
        .collect();
    rules.push(rule("GLOB", "5/s", &[]).when("apiKey", Pattern::Glob("k*".into())));
    let compiled = ruleset(vec![Group::new("g", rules)]);
    let query = query(&[("modelId", "gpt4"), ("apiKey", "l7")]);
    let candidates =
        |q| compiled.groups[0].index.candidates(&compiled.values(q)).collect::<Vec<_>>();
    assert_eq!(candidates(&query), [7, 1_000]);
}

proptest::proptest! {
    /// The index finds the same rule as a linear search.
    #[test]
    fn the_index_agrees_with_a_search_of_all_rules(
        conditions in proptest::collection::vec(
            proptest::collection::vec((0..3usize, 0..4usize), 0..3), 1..30),
        asked in proptest::collection::vec(proptest::option::of(0..3usize), 3),
    ) {
        let pattern = |kind| match kind {
            0 => Pattern::exactly("0"),
            1 => Pattern::OneOf(vec!["1".into(), "0".into()]),
            2 => Pattern::Glob("[1]".into()),
            _ => Pattern::Glob("?".into()),
        };
        let rules: Vec<_> = conditions.iter().enumerate().map(|(number, conditions)| {
            conditions.iter().fold(rule(&format!("R{number}"), "5/s", &[]), |rule, (dimension, kind)| {
                rule.when(["a", "b", "c"][*dimension], pattern(*kind))
            })
        }).collect();
        let values = ["0", "1", "2"];
        let asked: Vec<_> = ["a", "b", "c"].into_iter().zip(asked)
            .filter_map(|(name, value)| Some((name, values[value?]))).collect();
        let query = query(&asked);
        let expected = rules.iter().find(|rule| rule.when.iter().all(|(name, pattern)| {
            query.get(name).is_some_and(|value| pattern.matches(value))
        }));
        let expected: Vec<_> = expected.into_iter().map(|r| format!("{}#requests", r.name)).collect();
        let compiled = ruleset(vec![Group::new("g", rules.clone())]);
        proptest::prop_assert_eq!(keys(&compiled, &asked), expected);
    }
}

fn priced(micro_dollars: u64) -> Ruleset {
    let price = format!("{micro_dollars} USD/1M").parse().expect("a price");
    let mut book = PriceBook::default();
    book.insert("m", ModelPrices::new(Rates::new(price, price), Vec::new()));
    let settings = Settings { prices: Arc::new(book), ..Settings::default() };
    let budget = rule("BUDGET", "5.00 USD/day", &["u"]);
    Ruleset::new(vec![Group::new("g", [budget])], settings).expect("rules")
}

#[test]
fn tokens_become_money_where_money_is_limited() {
    let rules = priced(2);
    let mut query = query(&[("u", "x"), ("modelId", "m")]);
    query.cost = Cost { input_tokens: Some(10), output_tokens: Some(5), ..Cost::default() };
    let plan = rules.plan(&query, NOW).expect("a plan");
    assert_eq!((plan.charges()[0].need, plan.charges()[0].take), (30_000, 30_000));
    let fingerprint = plan.fingerprint();
    let dearer = priced(3);
    let again = dearer.plan(&query, NOW).expect("a plan");
    assert_eq!(again.fingerprint(), fingerprint, "a retry after a reload is still a retry");
    let mut longer = query.clone();
    longer.cost.output_tokens = Some(6);
    assert_ne!(rules.plan(&longer, NOW).expect("a plan").fingerprint(), fingerprint);
    let mut stated = query.clone();
    stated.cost.money = Money::from_nanos(7);
    assert_eq!(rules.plan(&stated, NOW).expect("a plan").charges()[0].take, 7, "as stated");
}

#[test]
fn an_admission_is_remembered_for_settlement_only_if_its_cost_is_unknown() {
    let keep = |limit: &str, tokens: Option<u64>| {
        let rules = ruleset(vec![Group::new("g", [rule("R", limit, &[])])]);
        let mut query = query(&[]);
        query.settle_within = Some(Span::from_secs(9));
        query.cost.input_tokens = tokens;
        rules.plan(&query, NOW).expect("a plan").id.keep
    };
    assert_eq!(keep("9/h", None), None);
    assert_eq!(keep("9 concurrent", None), None, "a lease is remembered anyway");
    assert_eq!(keep("900 tokens/h", Some(5)), None);
    assert_eq!(keep("900 tokens/h", None), Some(Span::from_secs(9)));
}

#[test]
fn a_model_without_a_price_is_refused_only_where_money_is_limited() {
    let rules = priced(2);
    let unpriced = query(&[("u", "x"), ("modelId", "other")]);
    let error = rules.plan(&unpriced, NOW).expect_err("no price");
    assert!(error.to_string().starts_with("modelId: no price is known for the model \"other\""));
    let unlimited = query(&[("modelId", "other")]);
    assert!(rules.plan(&unlimited, NOW).expect("a plan").charges().is_empty());
    let mut view = unpriced.clone();
    view.rule_scope = RuleScope::View;
    assert_eq!(rules.plan(&view, NOW).expect("a plan").charges()[0].take, 0);
}

#[test]
fn a_ban_is_decided_without_the_store() {
    let banned = |name: &str, user: &str| rule(name, "0", &["u"]).when("u", Pattern::exactly(user));
    let everybody = rule("ALL", "5/h", &[]);
    let rules = ruleset(vec![
        Group::new("all", [everybody]),
        Group::new("caller", [banned("BAN", "ann"), rule("USER", "5/h", &["u"])]),
    ]);
    let bob = query(&[("u", "bob")]);
    assert!(rules.plan(&bob, NOW).expect("a plan").ban(NOW).is_none());

    let ann = query(&[("u", "ann")]);
    let plan = rules.plan(&ann, NOW).expect("a plan");
    let (ban, decision) = plan.ban(NOW).expect("a ban");
    assert_eq!(ban.charges().len(), 1);
    assert_eq!(ban.charges()[0].rule().name, "BAN");
    assert!(matches!(decision, Decision::Never(never) if never.at == NOW));

    // Of two queries, only the banned one is denied.
    let plan = rules.plan_together(&bob, std::slice::from_ref(&ann), NOW).expect("a plan");
    let (ban, _) = plan.ban(NOW).expect("a ban");
    assert_eq!(ban.query_charges(0).charges.as_slice(), [] as [usize; 0]);
    assert_eq!(ban.query_charges(1).charges.as_slice(), [0]);
}

#[test]
fn an_override_that_bans_until_an_instant_says_so() {
    let rules = ruleset(vec![Group::new("caller", [rule("USER", "5/h", &["u"])])]);
    let ban = |id, until| Override { until, ..override_of("USER", id, &[("u", "ann")], &["0"]) };
    let ann = query(&[("u", "ann")]);
    let end = NOW + Span::from_secs(60);
    let rules = rules.with_overrides(&[ban(1, Some(end))]);
    let plan = rules.plan(&ann, NOW).expect("a plan");
    let (_, decision) = plan.ban(NOW).expect("a ban");
    assert!(matches!(&decision, Decision::Deny(deny) if deny.start == end), "{decision:?}");
    // The ban continues until the override is removed, which may take a moment.
    let (_, decision) = plan.ban(end).expect("a ban");
    assert!(matches!(&decision, Decision::Deny(deny) if deny.start > end), "{decision:?}");
    let rules = rules.with_overrides(&[ban(2, None)]);
    let plan = rules.plan(&ann, NOW).expect("a plan");
    assert!(matches!(plan.ban(NOW), Some((_, Decision::Never(_)))));
}

#[test]
fn a_ban_stands_alone() {
    let rule = Rule::new("R", limits(&["0", "5/h"]));
    let errors = Ruleset::new(vec![Group::new("g", [rule])], Settings::default()).unwrap_err();
    assert_eq!(errors[0].to_string(), "rule R: a limit of 0 is a ban: remove the other limits");
}

#[test]
fn the_explanation_says_why_a_rule_does_not_apply() {
    let rules = inference();
    let skipped_rules = |dimensions: &[(&str, &str)]| -> Vec<String> {
        let query = query(dimensions);
        let groups = rules.explain(&query);
        let skipped = groups[0].skipped.iter();
        skipped.map(|skipped| format!("{}: {}", skipped.rule, skipped.because)).collect()
    };
    assert_eq!(
        skipped_rules(&[
            ("userId", "u"),
            ("modelId", "m"),
            ("clientType", "EXTERNAL"),
            ("apiKey", "s3cret")
        ]),
        [
            "API_KEY_MODEL: apiKey has another value",
            "USER_MODEL_INTERNAL: clientType is EXTERNAL, but the rule requires INTERNAL",
        ]
    );
    assert_eq!(
        skipped_rules(&[("userId", "u"), ("modelId", "m"), ("clientType", "INTERNAL")]),
        [
            "API_KEY_MODEL: apiKey is missing",
            "USER_MODEL: rule USER_MODEL_INTERNAL comes first and applies",
        ]
    );
}

#[test]
fn the_explanation_names_the_override_that_applies() {
    let rules = ruleset(vec![Group::new("caller", [rule("USER", "5/h", &["u"])])]);
    let rules = rules.with_overrides(&[
        override_of("USER", 1, &[("u", "ann")], &["7/h"]),
        override_of("USER", 2, &[("u", "bob")], &["9/h"]),
    ]);
    let applied = |user: &'static str| {
        let query = query(&[("u", user)]);
        let groups = rules.explain(&query);
        groups[0].applied[0].overridden.map(|one| one.id)
    };
    assert_eq!(applied("ann"), Some(Id::from_bits(1)));
    assert_eq!(applied("bob"), Some(Id::from_bits(2)));
    assert_eq!(applied("eve"), None);
}
