//! limitador: one limit per scope in one namespace, with counters in memory.

use std::collections::HashMap;

use anyhow::Context as _;
use limitador::RateLimiter;
use limitador::limit::{Context, Expression, Limit, Namespace};

use crate::limiter::Limiter;
use crate::scope::{Mode, SCOPES};
use crate::traffic::{USERS, User};

pub(crate) struct Limitador {
    limiter: RateLimiter,
    namespace: Namespace,
    /// True if a scope counts per tenant: every scenario with more than one scope.
    tenants: bool,
}

impl Limitador {
    pub(crate) fn new(scopes: usize, mode: Mode) -> anyhow::Result<Self> {
        // More than twice the number of counters: none is evicted.
        let limiter = RateLimiter::new(4 * USERS as u64);
        for scope in SCOPES.into_iter().take(scopes) {
            let quota = scope.quota(mode);
            let variables = scope.per().iter().map(|&name| Expression::parse(name));
            let variables: Vec<_> = variables.collect::<Result<_, _>>().context(scope.name())?;
            let (amount, seconds) = (quota.amount().into(), quota.seconds().into());
            limiter.add_limit(Limit::new("bench", amount, seconds, [], variables));
        }
        Ok(Self { limiter, namespace: "bench".into(), tenants: scopes > 1 })
    }
}

impl Limiter for Limitador {
    fn asker(&self, _threads: usize) -> impl FnMut(&User) -> bool {
        |user| {
            let mut values = HashMap::with_capacity(3);
            values.insert("userId".to_owned(), user.user.to_owned());
            values.insert("modelId".to_owned(), user.model.to_owned());
            if self.tenants {
                values.insert("tenantId".to_owned(), user.tenant.to_owned());
            }
            let asked = self.limiter.check_rate_limited_and_update(
                &self.namespace,
                &Context::from(values),
                1,
            );
            !asked.expect("the counters are in memory").limited
        }
    }
}
