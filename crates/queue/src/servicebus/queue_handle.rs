//! [`QueueHandle`]: one queue with its links: a sender, a management client, and the locks that this
//! process holds.

use std::sync::Arc;

use fe2o3_amqp::link::delivery::DeliveryFut;
use fe2o3_amqp::link::{CreditMode, ReceiverAttachError, SendError};
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::types::definitions::{ReceiverSettleMode, SenderSettleMode};
use fe2o3_amqp::types::messaging::Outcome;
use fe2o3_amqp::{Receiver, Sender};
use fe2o3_amqp_management::MgmtClient;
use fe2o3_amqp_management::error::Error as RequestError;
use tokio::sync::{Mutex, OnceCell};

use super::connection::{BusConnection, OpenLink};
use super::failure;
use super::lease::Leases;
use super::management::{ManagementRequest, ManagementResponse};
use super::settlement::Settlement;
use crate::Error;
use crate::batcher::Batcher;
use crate::broker::QueueName;

/// End of the address of a dead-letter subqueue. Service Bus does not tell upper from lower case.
pub(super) const SUBQUEUE: &str = "/$deadletterqueue";
/// Maximum number of concurrent settlements: the management client has one request in flight.
const REQUESTS_MAX: usize = 1;
/// Status of a response without content.
const NO_CONTENT: u16 = 204;

/// A queue and its links, which are opened when they are needed.
pub(super) struct BusQueue {
    pub(super) connection: Arc<BusConnection>,
    pub(super) name: QueueName,
    pub(super) sender: Mutex<Option<OpenLink<Sender>>>,
    manager: Mutex<Option<OpenLink<MgmtClient>>>,
    /// Set when the queue is known to detect duplicates.
    pub(super) detection: OnceCell<()>,
}

/// The confirmation of a message, which Service Bus sends later.
pub(super) type Confirmation = DeliveryFut<Result<Outcome, SendError>>;

/// A queue with the tasks that settle and renew its deliveries.
pub(super) struct QueueHandle {
    pub(super) queue: Arc<BusQueue>,
    pub(super) settlements: Batcher<Settlement>,
    pub(super) leases: Arc<Leases>,
}

impl QueueHandle {
    pub(super) fn new(connection: Arc<BusConnection>, name: &QueueName) -> Self {
        let (sender, manager, detection) = Default::default();
        let queue =
            Arc::new(BusQueue { connection, name: name.clone(), sender, manager, detection });
        let settlements = Batcher::start(&queue, REQUESTS_MAX);
        let leases = Leases::start(&queue);
        Self { queue, settlements, leases }
    }
}

impl BusQueue {
    /// Returns the name of the queue, for messages and as an address.
    pub(super) fn address(&self) -> &str {
        self.name.name()
    }

    /// Returns true if this is a dead-letter subqueue, to which messages can't be sent.
    pub(super) fn is_subqueue(&self) -> bool {
        self.address().to_ascii_lowercase().ends_with(SUBQUEUE)
    }

    /// Opens the sender anew, which fails if the queue does not exist.
    pub(super) async fn check(&self) -> Result<(), Error> {
        if self.is_subqueue() {
            let OpenLink { live, link, session: _session } = self.attach_receiver().await?;
            let _ = live.within(link.close()).await?;
            return Ok(());
        }
        let mut sender = self.sender.lock().await;
        *sender = Some(self.attach_sender().await?);
        Ok(())
    }

    /// Opens a sender.
    pub(super) async fn attach_sender(&self) -> Result<OpenLink<Sender>, Error> {
        let live = self.connection.authorized(self.address()).await?;
        let mut session = live.begin_session().await?;
        let attach = Sender::builder()
            .name(self.connection.link_name(self.address()))
            .target(self.address())
            .sender_settle_mode(SenderSettleMode::Unsettled)
            .attach(&mut session);
        let attached = live.within(attach).await?;
        let link = attached.map_err(|error| failure::of_queue(self.address(), &error))?;
        Ok(OpenLink { live, link, session })
    }

    /// Opens a receiver without credit.
    pub(super) async fn attach_receiver(&self) -> Result<OpenLink<Receiver>, Error> {
        let live = self.connection.authorized(self.address()).await?;
        let mut session = live.begin_session().await?;
        let attached = live.within(self.receiver_in(&mut session)).await?;
        let link = attached.map_err(|error| failure::of_queue(self.address(), &error))?;
        Ok(OpenLink { live, link, session })
    }

    /// Opens a receiver without credit in a session.
    pub(super) async fn receiver_in(
        &self,
        session: &mut SessionHandle<()>,
    ) -> Result<Receiver, ReceiverAttachError> {
        let builder = Receiver::builder()
            .name(self.connection.link_name(self.address()))
            .source(self.address())
            .sender_settle_mode(SenderSettleMode::Unsettled)
            .receiver_settle_mode(ReceiverSettleMode::First)
            .credit_mode(CreditMode::Manual);
        builder.attach(session).await
    }

    /// Sends a management request. Returns an error unless it was executed.
    pub(super) async fn request(
        &self,
        request: ManagementRequest,
    ) -> Result<ManagementResponse, Error> {
        let mut known = self.manager.lock().await;
        // Taken out of its place: if the caller stops waiting, the next caller must not get a
        // client with an outstanding response.
        let mut taken = known.take().filter(|open| open.live.is_up());
        let response = loop {
            let is_old = taken.is_some();
            let mut open = match taken.take() {
                Some(open) => open,
                None => self.attach_manager().await?,
            };
            match open.live.within(open.link.call(request.clone())).await? {
                Ok(response) => {
                    *known = Some(open);
                    break response;
                }
                // Service Bus closes links that are not used for ten minutes. Nothing was sent.
                Err(RequestError::Send(_)) if is_old => {}
                Err(error) => return Err(failure::of_queue(self.address(), &error)),
            }
        };
        let response: ManagementResponse = response;
        match response.status {
            200 | NO_CONTENT => Ok(response),
            status => Err(failure::of_status(self.address(), status, &response.text)),
        }
    }

    async fn attach_manager(&self) -> Result<OpenLink<MgmtClient>, Error> {
        let live = self.connection.authorized(self.address()).await?;
        let mut session = live.begin_session().await?;
        let attach = MgmtClient::builder()
            .management_node_address(format!("{}/$management", self.address()))
            .client_node_addr(self.connection.link_name(self.address()))
            .attach(&mut session);
        let attached = live.within(attach).await?;
        let link = attached.map_err(|error| failure::of_queue(self.address(), &error))?;
        Ok(OpenLink { live, link, session })
    }
}
