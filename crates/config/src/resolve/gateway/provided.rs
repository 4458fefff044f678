//! The dimensions that requests through a gateway can have: `caller`, and those that it reads from
//! header fields. A limit by another dimension would never apply.

use std::collections::BTreeMap;

use super::super::dimensions;
use super::super::item::{Fields, Item, nearest};
use super::super::scalar;
use super::super::upstream::header;
use crate::config::{CALLER, GatewayOptions, HeaderDimension};
use crate::raw::Value;
use crate::report::Report;

/// The dimensions of a gateway.
pub(super) struct ProvidedDimensions {
    pub(super) dimensions: BTreeMap<String, HeaderDimension>,
    /// Names of all dimensions, also of those whose header field is not valid.
    names: Vec<String>,
    has_tokens: bool,
}

impl ProvidedDimensions {
    /// Reads the option `dimensions` of a gateway. `required` are the dimensions that the section
    /// `dimensions` of the file marks as required.
    pub(super) fn read(fields: &Fields<'_>, required: &[String], report: &mut Report) -> Self {
        let form = "write a map from dimensions to header fields, such as tenantId: x-tenant-id";
        let entries =
            fields.read_some("dimensions", report, |item, report| item.entries(report, form));
        let has_tokens = fields.get("auth").is_some();
        let mut provided =
            Self { dimensions: BTreeMap::new(), names: vec![CALLER.to_owned()], has_tokens };
        for (key, item) in entries.unwrap_or_default() {
            dimensions::check_name(&key.text, &item, report);
            if key.text == CALLER {
                item.fail(report, "caller is always the name of the token", "choose another name");
            }
            let marked = required.contains(&key.text);
            if let Some(dimension) = header_dimension(&item, marked, report) {
                provided.dimensions.insert(key.text.clone(), dimension);
            }
            provided.names.push(key.text.clone());
        }
        provided
    }

    /// Reads the name of a dimension that requests through the gateway have.
    pub(super) fn name(&self, item: &Item<'_>, report: &mut Report) -> Option<String> {
        let name = dimensions::name(item, report)?;
        if !self.names.contains(&name) {
            let message = "no request through this gateway has this dimension";
            item.fail(report, message, &self.remedy(&name, item));
            return None;
        }
        if name == CALLER && !self.has_tokens {
            let message = "the gateway has no tokens, so all its requests have the same caller";
            item.warn(report, message, "add auth.tokens to the gateway, or use another dimension");
        }
        Some(name)
    }

    fn remedy(&self, name: &str, item: &Item<'_>) -> String {
        let names = self.names.iter().map(String::as_str);
        // A suggestion would reveal the value of a variable.
        let literal = matches!(&item.node.value, Value::Scalar(scalar) if scalar.is_literal());
        match nearest(name, names.clone()).filter(|_| literal) {
            Some(near) => format!("did you mean {near}?"),
            None => format!(
                "write one of {}, or add it to dimensions of the gateway, with its header field",
                names.collect::<Vec<_>>().join(", ")
            ),
        }
    }
}

/// Reads a header field, or a map with the header field and `required`.
fn header_dimension(item: &Item<'_>, marked: bool, report: &mut Report) -> Option<HeaderDimension> {
    if !matches!(item.node.value, Value::Map(_)) {
        return Some(HeaderDimension { header: header(item, report)?, required: marked });
    }
    let fields = Fields::open(item.clone(), &["header", "required"], report)?;
    let field = fields.require("header", "write a header field, such as x-tenant-id", report);
    Some(HeaderDimension {
        required: fields.read("required", marked, report, scalar::boolean),
        header: header(&field?, report)?,
    })
}

/// The dimensions of all gateways of a file.
pub(in super::super) struct NamedDimensions<'g>(Vec<Vec<&'g str>>);

impl<'g> NamedDimensions<'g> {
    /// Collects the dimensions of each gateway.
    pub(in super::super) fn of(gateways: &'g [GatewayOptions]) -> Self {
        let names = |gateway: &'g GatewayOptions| {
            gateway.dimensions.keys().map(String::as_str).chain([CALLER]).collect()
        };
        Self(gateways.iter().map(names).collect())
    }

    /// Returns true if requests through some gateway have all these dimensions.
    pub(in super::super) fn include(&self, names: &[&str]) -> bool {
        self.0.iter().any(|provided| names.iter().all(|name| provided.contains(name)))
    }

    /// Returns the dimension of a gateway that an unknown name probably misspells.
    pub(in super::super) fn suggestion_for(&self, name: &str) -> Option<&'g str> {
        if self.include(&[name]) {
            return None;
        }
        nearest(name, self.0.iter().flatten().copied())
    }
}
