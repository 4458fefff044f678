//! Who asks: the same users, in the same order, for every limiter.

use crate::scope::SCOPES;

/// How many users there are; each has one model and one tenant.
pub(crate) const USERS: usize = 10_000;
const TENANTS: usize = 100;
const MODELS: [&str; 10] = [
    "gpt-4o",
    "gpt-4o-mini",
    "gpt-4.1",
    "o4-mini",
    "claude-sonnet-4",
    "claude-haiku-4",
    "gemini-2.5-pro",
    "gemini-2.5-flash",
    "llama-4-scout",
    "mistral-large",
];

/// A power of two, so that going round is a mask.
const ORDER: usize = 1 << 16;

/// What a request says about its sender.
///
/// A service has just read these from its socket, so they should be in the cache: users are small
/// and their texts lie side by side.
pub(crate) struct User {
    pub(crate) user: &'static str,
    pub(crate) model: &'static str,
    pub(crate) tenant: &'static str,
    /// The keys of the scopes, for a caller that keeps them.
    pub(crate) keys: &'static [String; SCOPES.len()],
}

/// The users, and the order in which they come.
pub(crate) struct Traffic {
    pub(crate) users: Vec<User>,
    /// Drawn before anything is measured, so that drawing costs nothing.
    order: Vec<u32>,
}

impl Traffic {
    /// To be made once: its texts stay.
    pub(crate) fn new() -> Self {
        let mut random = fastrand::Rng::with_seed(42);
        let user_names = texts(USERS, |number| format!("user-{number:06}"));
        let tenant_names = texts(TENANTS, |number| format!("tenant-{number:03}"));
        let users = user_names.into_iter().enumerate().map(|(number, user)| {
            let model = MODELS[number % MODELS.len()];
            let tenant = tenant_names[number / MODELS.len() % TENANTS];
            let keys = SCOPES.map(|scope| scope.key(user, model, tenant));
            User { user, model, tenant, keys: Box::leak(Box::new(keys)) }
        });
        Self {
            users: users.collect(),
            order: (0..ORDER).map(|_| random.u32(0..USERS as u32)).collect(),
        }
    }

    /// The user of the request with this number.
    pub(crate) fn at(&self, number: usize) -> &User {
        &self.users[self.order[number % ORDER] as usize]
    }

    /// The number from which thread `thread` of `threads` starts, so that no two follow each other.
    pub(crate) fn start(&self, thread: usize, threads: usize) -> usize {
        ORDER / threads * thread
    }
}

/// Texts of one length, side by side.
fn texts(count: usize, text: impl Fn(usize) -> String) -> Vec<&'static str> {
    let all: &'static str = (0..count).map(&text).collect::<String>().leak();
    let length = all.len() / count;
    (0..count).map(|number| &all[number * length..][..length]).collect()
}
