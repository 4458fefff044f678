//! The way to wherever a call belongs: the only server there is, or the one that has its slot.

use sluicegate_core::Timestamp;

use super::call::Call;
use super::cluster::Cluster;
use super::failure::{Failure, Refusal};
use super::heartbeat::Loss;
use super::keys::Layout;
use super::link::{Link, State, Terms};
use super::reply::Reply;
use super::sentinel::{Sentinels, Target};
use super::server::Server;
use super::slot::Slot;

/// Which servers make up a Redis.
#[derive(Clone, Debug)]
pub enum Topology {
    /// One.
    Single(Server),
    /// A cluster, found through any of these. Each of its servers takes the login of the first.
    Cluster(Vec<Server>),
    /// The current master, asked of sentinels.
    Sentinel(Sentinels),
}

impl Topology {
    pub(super) const fn layout(&self) -> Layout {
        match self {
            Self::Single(_) | Self::Sentinel(_) => Layout::Together,
            Self::Cluster(_) => Layout::Slots,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) enum Way {
    Link(Link),
    Cluster(Cluster),
}

impl Way {
    pub(super) fn open(topology: Topology, terms: Terms) -> Self {
        match topology {
            Topology::Single(server) => Self::Link(Link::open(Target::Server(server), terms)),
            Topology::Sentinel(sentinels) => {
                Self::Link(Link::open(Target::Master(sentinels), terms))
            }
            Topology::Cluster(seeds) => Self::Cluster(Cluster::open(seeds, terms)),
        }
    }

    pub(super) fn state(&self) -> State {
        match self {
            Self::Link(link) => link.state(),
            Self::Cluster(cluster) => cluster.state(),
        }
    }

    /// Whether a server may throw counters away when its memory is full.
    pub(super) fn evicts(&self) -> bool {
        match self {
            Self::Link(link) => link.evicts(),
            Self::Cluster(cluster) => cluster.evicts(),
        }
    }

    /// Why a server writes nothing, if one answers but doesn't.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Link(link) => link.refusal(),
            Self::Cluster(cluster) => cluster.refusal(),
        }
    }

    /// When the server of a slot last lost its memory, if it ever did.
    pub(super) fn loss(&self, slot: impl FnOnce() -> Slot) -> Option<Loss> {
        match self {
            Self::Link(link) => link.loss(),
            Self::Cluster(cluster) => cluster.loss(slot()),
        }
    }

    /// Whether the server of a slot is known not to answer.
    pub(super) fn is_down(&self, slot: Slot) -> bool {
        match self {
            Self::Link(link) => link.state() == State::Down,
            Self::Cluster(cluster) => cluster.is_down(slot),
        }
    }

    /// Sends a call and waits for its answer; nothing is sent after that time.
    pub(super) async fn ask(&self, call: Call, not_after: Timestamp) -> Result<Reply, Failure> {
        match self {
            Self::Link(link) => link.ask(call, not_after).await,
            Self::Cluster(cluster) => cluster.ask(call, not_after).await,
        }
    }
}
