//! governor: one limiter per scope with `String` keys, its DashMap store and its default clock.

use std::num::NonZeroU32;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use crate::limiter::Limiter;
use crate::scope::{self, Mode, SCOPES, Scope};
use crate::traffic::User;

/// governor with keys that the caller keeps between requests: its best case, and the one that our
/// goals refer to.
pub(crate) struct Kept(Vec<DefaultKeyedRateLimiter<String>>);

/// governor with keys that are built for each request, as in a service that reads the values from
/// its requests.
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
    let amount = NonZeroU32::new(quota.amount()).expect("no scope has a limit of zero");
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
