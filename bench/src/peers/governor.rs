//! governor: a limiter per scope, keyed by `String`, in its DashMap store with its own clock.

use std::num::NonZeroU32;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use crate::limiter::Limiter;
use crate::scope::{self, Mode, SCOPES, Scope};
use crate::traffic::User;

/// Asked with texts that the caller kept from before: its best case, and what we compare with.
pub(crate) struct Kept(Vec<DefaultKeyedRateLimiter<String>>);

/// Asked with texts built for each request, as a service does whose requests bring their values.
pub(crate) struct Built(Vec<(Scope, DefaultKeyedRateLimiter<String>)>);

impl Kept {
    pub(crate) fn new(scopes: usize, mode: Mode) -> Self {
        Self(limiters(scopes, mode).map(|(_, limiter)| limiter).collect())
    }
}

impl Built {
    pub(crate) fn new(scopes: usize, mode: Mode) -> Self {
        Self(limiters(scopes, mode).collect())
    }
}

fn limiters(
    scopes: usize,
    mode: Mode,
) -> impl Iterator<Item = (Scope, DefaultKeyedRateLimiter<String>)> {
    let scopes = SCOPES.into_iter().take(scopes);
    scopes.map(move |scope| (scope, RateLimiter::keyed(quota(scope.quota(mode)))))
}

pub(crate) fn quota(quota: scope::Quota) -> Quota {
    let amount = NonZeroU32::new(quota.amount()).expect("every scope gives something");
    match quota {
        scope::Quota::PerSecond(_) => Quota::per_second(amount),
        scope::Quota::Hourly(_) => Quota::per_hour(amount),
    }
}

impl Limiter for Kept {
    fn asker(&self, _threads: usize) -> impl FnMut(&User) -> bool {
        |user| {
            let mut asked = self.0.iter().zip(user.keys);
            asked.all(|(limiter, key)| limiter.check_key(key).is_ok())
        }
    }
}

impl Limiter for Built {
    fn asker(&self, _threads: usize) -> impl FnMut(&User) -> bool {
        |user| {
            let mut asked = self.0.iter();
            asked.all(|(scope, limiter)| {
                limiter.check_key(&scope.key(user.user, user.model, user.tenant)).is_ok()
            })
        }
    }
}
