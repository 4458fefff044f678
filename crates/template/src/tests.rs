use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

struct TestValues {
    message: Option<Value>,
    job: Value,
    result: Value,
    item: Value,
}

impl ValueSource for TestValues {
    fn value(&self, root: Root) -> Option<&Value> {
        match root {
            Root::Message => self.message.as_ref(),
            Root::Job => Some(&self.job),
            Root::Result => Some(&self.result),
            Root::Item => Some(&self.item),
        }
    }
}

fn known() -> TestValues {
    TestValues {
        message: Some(json!({
            "user": {"name": "Ann", "age": 41, "tags": ["a", "b"], "boss": null, "on": true},
            "job": "of the message",
            "odd name": 1,
            "empty": "",
            "images": ["x", "y"],
        })),
        job: json!({"id": "j-1", "attempt": 0, "provider": "openai"}),
        result: json!({"total": 2}),
        item: json!("one"),
    }
}

fn rendered(text: &str) -> String {
    match Tree::text(text, Root::EACH) {
        Err(error) => error.to_string(),
        Ok(tree) => match tree.render(&known()) {
            Err(error) => error.to_string(),
            Ok(value) => value.to_string(),
        },
    }
}

#[test]
fn a_placeholder_alone_is_the_value_and_in_a_text_it_is_text() {
    for (text, expected) in [
        ("plain", r#""plain""#),
        ("", r#""""#),
        ("{{user.name}}", r#""Ann""#),
        ("{{ user.name }}", r#""Ann""#),
        ("{{user.age}}", "41"),
        ("{{user.tags}}", r#"["a","b"]"#),
        ("{{user.boss}}", "null"),
        ("{{images.1}}", r#""y""#),
        ("{{user.name}} is {{user.age}}, {{user.on}}", r#""Ann is 41, true""#),
        ("tags {{user.tags}}", r#""tags [\"a\",\"b\"]""#),
        ("{{\"odd name\"}}", "1"),
        ("{{job.id}}", r#""j-1""#),
        ("{{job.attempt}}", "0"),
        ("{{message.job}}", r#""of the message""#),
        ("{{\"job\"}}", r#""of the message""#),
        ("{{result.total}}", "2"),
        ("{{item}}", r#""one""#),
        (" {{item}}", r#"" one""#),
        ("{{{{item}}", r#""{{item}}""#),
        ("{{empty}}", r#""""#),
        ("a } b }} c { d", r#""a } b }} c { d""#),
    ] {
        assert_eq!(rendered(text), expected, "{text}");
    }
}

#[test]
fn a_default_stands_for_what_is_missing_or_null() {
    for (text, expected) in [
        ("{{user.mail:-nobody}}", r#""nobody""#),
        ("{{user.boss:-none}}", r#""none""#),
        ("{{user.age:-7}}", "41"),
        ("{{user.size:-7}}", "7"),
        ("{{user.size:-[]}}", "[]"),
        ("{{user.size:-\"7\"}}", r#""7""#),
        ("{{user.size:-}}", r#""""#),
        ("{{empty:-x}}", r#""""#),
        ("{{job.type:-none}}", r#""none""#),
        ("for {{user.mail:-you: all - of it}}", r#""for you: all - of it""#),
        ("{{\"a:-b\":-c}}", r#""c""#),
    ] {
        assert_eq!(rendered(text), expected, "{text}");
    }
}

#[test]
fn the_error_names_the_placeholder_that_can_not_be_filled() {
    for (text, expected) in [
        ("{{user.mail}}", "{{user.mail}} can't be filled: it is missing"),
        ("a {{user.name.x}}", "{{user.name.x}} can't be filled: it is missing"),
        ("{{images.2}}", "{{images.2}} can't be filled: it is missing"),
        ("{{images.01}}", "{{images.01}} can't be filled: it is missing"),
        ("{{job.type}}", "{{job.type}} can't be filled: it is missing"),
        ("a {{user.boss}}", "{{user.boss}} can't be filled: it is null"),
        ("{{\"odd name\".\"\"}}", "{{\"odd name\".\"\"}} can't be filled: it is missing"),
    ] {
        assert_eq!(rendered(text), expected, "{text}");
    }
    let text = Tree::text("{{a}}", Root::BEFORE).unwrap();
    let error = text.render(&TestValues { message: None, ..known() }).unwrap_err();
    assert_eq!(error.to_string(), "{{a}} can't be filled: the message is not JSON");
}

#[test]
fn an_invalid_placeholder_is_an_error() {
    let not_a_placeholder = "is not a placeholder";
    for (text, expected) in [
        ("{{", "is not closed"),
        ("{{a", "is not closed"),
        ("{{}}", not_a_placeholder),
        ("{{ }}", not_a_placeholder),
        ("{{a.}}", not_a_placeholder),
        ("{{.a}}", not_a_placeholder),
        ("{{a..b}}", not_a_placeholder),
        ("{{a b}}", not_a_placeholder),
        ("{{a | upper}}", not_a_placeholder),
        ("{{f(a)}}", not_a_placeholder),
        ("{{a[0]}}", not_a_placeholder),
        ("{{{a}}}", not_a_placeholder),
        ("{{\"a}}", not_a_placeholder),
        ("{{#if a}}", not_a_placeholder),
        ("{{a:-{x}}", "has braces in its default"),
        ("{{job}}", "is unknown: job has"),
        ("{{job.name}}", "is unknown: job has"),
        ("{{job.id.x}}", "is unknown: job has"),
    ] {
        let found = rendered(text);
        assert!(found.contains(expected), "{text}: {found}");
    }
    for (text, known, expected) in [
        ("{{item}}", Root::BEFORE, PlaceholderProblem::Unknown(Root::Item)),
        ("{{result.x}}", Root::BEFORE, PlaceholderProblem::Unknown(Root::Result)),
        ("{{item}}", Root::AFTER, PlaceholderProblem::Item),
    ] {
        assert_eq!(Text::parse(text, known).unwrap_err().problem, expected, "{text}");
    }
}

#[test]
fn a_member_is_found_by_its_path() {
    let value = json!({"a": [{"b": 7}], "0": "zero"});
    for (path, expected) in [("a.0.b", Some(json!(7))), ("0", Some(json!("zero"))), ("b", None)] {
        assert_eq!(JsonPath::parse(path).unwrap().of(&value), expected.as_ref(), "{path}");
    }
    assert_eq!(JsonPath::parse(".").unwrap().of(&value), Some(&value));
    for path in ["", "a.", "..", "a[0]", "a b"] {
        assert!(JsonPath::parse(path).is_err(), "{path}");
    }
}

#[test]
fn debug_output_contains_no_secret() {
    let tree = Tree::text("s3cret {{a}}", Root::BEFORE).unwrap();
    let text = Text::parse("s3cret {{a}}", Root::BEFORE).unwrap();
    assert_eq!(format!("{tree:?} {text:?}"), "Tree(…) Text(…{{a}})");
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "(?s)[ab{}.\":\\-\\\\ 0jobitem\u{e9}]{0,40}") {
        if let Ok(tree) = Tree::text(&text, Root::EACH) {
            let _ = tree.render(&known());
        }
        let _ = JsonPath::parse(&text);
    }

    /// A value stays one value at any position.
    #[test]
    fn a_value_never_becomes_more_than_a_value(value in any::<String>()) {
        let scope = TestValues { message: Some(json!({"x": value.clone()})), ..known() };
        let tree = Tree::Map(vec![
            ("alone".to_owned(), Tree::text("{{x}}", Root::BEFORE).unwrap()),
            ("inside".to_owned(), Tree::text("<{{x}}>", Root::BEFORE).unwrap()),
        ]);
        let json = tree.render(&scope).unwrap().to_string();
        let back: Value = serde_json::from_str(&json).unwrap();
        prop_assert_eq!(back, json!({"alone": value.clone(), "inside": format!("<{value}>")}));
    }

    #[test]
    fn a_path_that_is_shown_can_be_read_again(steps in prop::collection::vec(".{0,6}", 1..4)) {
        let member = JsonPath::new(steps);
        prop_assert_eq!(JsonPath::parse(&member.to_string()).unwrap(), member);
    }
}
