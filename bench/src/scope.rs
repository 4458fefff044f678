//! What is limited: the five scopes, and how much each gives.

/// A kind of counter. A scenario with n scopes has the first n.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// One counter for each user and model: as many as there are users.
    UserModel,
    /// A hundred counters.
    Tenant,
    /// Ten counters.
    Model,
    /// As many as there are users.
    User,
    /// One counter.
    Global,
}

pub(crate) const SCOPES: [Scope; 5] =
    [Scope::UserModel, Scope::Tenant, Scope::Model, Scope::User, Scope::Global];

/// Used up by the first few requests of each user.
const HOURLY: u32 = 5;

impl Scope {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::UserModel => "USER_MODEL",
            Self::Tenant => "TENANT",
            Self::Model => "MODEL",
            Self::User => "USER",
            Self::Global => "GLOBAL",
        }
    }

    /// The dimensions by which it counts apart.
    pub(crate) const fn per(self) -> &'static [&'static str] {
        match self {
            Self::UserModel => &["userId", "modelId"],
            Self::Tenant => &["tenantId"],
            Self::Model => &["modelId"],
            Self::User => &["userId"],
            Self::Global => &[],
        }
    }

    /// The key as the user of a limiter without dimensions builds it.
    pub(crate) fn key(self, user: &str, model: &str, tenant: &str) -> String {
        match self {
            Self::UserModel => format!("{user}:{model}"),
            Self::Tenant => format!("tenant:{tenant}"),
            Self::Model => format!("model:{model}"),
            Self::User => format!("user:{user}"),
            Self::Global => "global".to_owned(),
        }
    }

    /// How much it gives.
    pub(crate) const fn quota(self, mode: Mode) -> Quota {
        match (self, mode) {
            // Only the first scope denies: the best case for those who ask one after the other
            // and stop at the first denial.
            (Self::UserModel, Mode::Deny) => Quota::Hourly(HOURLY),
            (Self::UserModel | Self::User, _) => Quota::PerSecond(100_000),
            (Self::Tenant | Self::Model | Self::Global, _) => Quota::PerSecond(10_000_000),
        }
    }
}

/// What happens to nearly every request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Admit,
    Deny,
}

impl Mode {
    /// How often each user has to ask until every further request meets the same answer.
    pub(crate) const fn requests_to_settle(self) -> usize {
        match self {
            Self::Admit => 1,
            Self::Deny => HOURLY as usize,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Admit => "admitted",
            Self::Deny => "denied",
        }
    }
}

/// A limit, in the terms of every peer.
#[derive(Clone, Copy)]
pub(crate) enum Quota {
    /// So many in a second: more than anybody asks for.
    PerSecond(u32),
    /// So many in an hour: used up at once.
    Hourly(u32),
}

impl Quota {
    pub(crate) const fn amount(self) -> u32 {
        match self {
            Self::PerSecond(amount) | Self::Hourly(amount) => amount,
        }
    }

    pub(crate) const fn seconds(self) -> u32 {
        match self {
            Self::PerSecond(_) => 1,
            Self::Hourly(_) => 3_600,
        }
    }

    /// As an exact limit of ours.
    ///
    /// A second is written as tenths, which no peer could tell from the whole at these amounts:
    /// entries then leave while a round is measured, and their purge is part of the figure.
    pub(crate) fn exact(self) -> String {
        match self {
            Self::PerSecond(amount) => format!("{}/100ms", amount / 10),
            Self::Hourly(amount) => format!("{amount}/h"),
        }
    }

    /// As a token bucket of ours: what governor and throttlecrab compute.
    ///
    /// Large and slowly refilled, so that it has something in it whenever it is asked: our store
    /// forgets a bucket that has drained, and would make it anew for every request.
    pub(crate) fn bucket(self) -> String {
        match self {
            Self::PerSecond(amount) => {
                format!("{}/s burst {}", amount / 1_000, u64::from(amount) * 100)
            }
            Self::Hourly(amount) => format!("{amount}/h burst {amount}"),
        }
    }
}
