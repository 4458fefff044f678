//! [`RedisConnection`]: the connection of a store, to a single server or to a cluster.

use sluicegate_core::Timestamp;

use super::call::Call;
use super::cluster::Cluster;
use super::failure::{CallFailure, WriteRefusal};
use super::heartbeat::DataLoss;
use super::keys::Layout;
use super::link::{ConnectionState, Link, LinkOptions};
use super::reply::Reply;
use super::sentinel::LinkTarget;
use super::server::ServerUsage;
use super::slot::ClusterSlot;
use crate::redis_servers::RedisTopology;

impl RedisTopology {
    pub(super) const fn layout(&self) -> Layout {
        match self {
            Self::Single(_) | Self::Sentinel(_) => Layout::SingleServer,
            Self::Cluster(_) => Layout::BySlot,
        }
    }
}

/// A connection to Redis.
#[derive(Clone, Debug)]
pub(super) enum RedisConnection {
    Link(Link),
    Cluster(Cluster),
}

impl RedisConnection {
    pub(super) fn open(topology: RedisTopology, options: LinkOptions) -> Self {
        match topology {
            RedisTopology::Single(server) => {
                Self::Link(Link::open(LinkTarget::Server(server), options))
            }
            RedisTopology::Sentinel(sentinels) => {
                Self::Link(Link::open(LinkTarget::Master(sentinels), options))
            }
            RedisTopology::Cluster(seeds) => Self::Cluster(Cluster::open(seeds, options)),
        }
    }

    pub(super) fn state(&self) -> ConnectionState {
        match self {
            Self::Link(link) => link.state(),
            Self::Cluster(cluster) => cluster.state(),
        }
    }

    /// Returns true if a server may evict counters when its memory is full.
    pub(super) fn evicts(&self) -> bool {
        match self {
            Self::Link(link) => link.evicts(),
            Self::Cluster(cluster) => cluster.evicts(),
        }
    }

    /// Returns memory and load of each connected server.
    pub(super) fn usage(&self) -> Vec<ServerUsage> {
        match self {
            Self::Link(link) => link.usage().into_iter().collect(),
            Self::Cluster(cluster) => cluster.usage(),
        }
    }

    /// Returns the reason why a server rejects writes, if one does.
    pub(super) fn refusal(&self) -> Option<WriteRefusal> {
        match self {
            Self::Link(link) => link.refusal(),
            Self::Cluster(cluster) => cluster.refusal(),
        }
    }

    /// Returns the last data loss of the server of a slot, if there was one.
    pub(super) fn loss(&self, slot: impl FnOnce() -> ClusterSlot) -> Option<DataLoss> {
        match self {
            Self::Link(link) => link.loss(),
            Self::Cluster(cluster) => cluster.loss(slot()),
        }
    }

    /// Returns true if the server of a slot is down.
    pub(super) fn is_down(&self, slot: ClusterSlot) -> bool {
        match self {
            Self::Link(link) => link.state() == ConnectionState::Down,
            Self::Cluster(cluster) => cluster.is_down(slot),
        }
    }

    /// Sends a call and waits for its reply. Nothing is sent after the deadline.
    pub(super) async fn execute(
        &self,
        call: Call,
        deadline: Timestamp,
    ) -> Result<Reply, CallFailure> {
        match self {
            Self::Link(link) => link.execute(call, deadline).await,
            Self::Cluster(cluster) => cluster.execute(call, deadline).await,
        }
    }
}
