//! [`QueueHandle`]: one queue with its links: a sender, a management client, and the locks that this
//! process holds.

use std::sync::Arc;
use std::time::Duration;

use fe2o3_amqp::link::delivery::DeliveryFut;
use fe2o3_amqp::link::{CreditMode, SendError};
use fe2o3_amqp::types::definitions::{ReceiverSettleMode, SenderSettleMode};
use fe2o3_amqp::types::messaging::Outcome;
use fe2o3_amqp::{Receiver, Sender};
use fe2o3_amqp_management::MgmtClient;
use fe2o3_amqp_management::error::Error as RequestError;
use tokio::sync::{Mutex, OnceCell};

use super::connection::{BusConnection, OpenConnection};
use super::failure;
use super::lease::Leases;
use super::management::{ManagementRequest, ManagementResponse};
use super::settlement::Settlement;
use crate::Error;
use crate::batcher::Batcher;
use crate::broker::QueueName;

/// End of the address of a dead-letter subqueue. Service Bus does not tell upper from lower case.
pub(super) const SUBQUEUE: &str = "/$deadletterqueue";
/// Number of retries for opening a link that collides with an earlier one: the client gives the number
/// of a link that was refused to the next one, which then ends together with it.
const ATTACH_TRIES: u32 = 5;
const COLLISION_PAUSE: Duration = Duration::from_millis(20);
/// Maximum number of concurrent settlements: the management client has one request in flight.
const REQUESTS_MAX: usize = 1;
/// Status of a response without content.
const NO_CONTENT: u16 = 204;

/// A queue and its links, which are opened when they are needed.
pub(super) struct BusQueue {
    pub(super) connection: Arc<BusConnection>,
    pub(super) name: QueueName,
    pub(super) sender: Mutex<Option<OpenSender>>,
    manager: Mutex<Option<(Arc<OpenConnection>, MgmtClient)>>,
    /// Set when the queue is known to detect duplicates.
    pub(super) detection: OnceCell<()>,
}

/// A sender and its connection.
pub(super) struct OpenSender {
    pub(super) live: Arc<OpenConnection>,
    pub(super) sender: Sender,
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
            let (live, receiver) = self.receiver().await?;
            let _ = live.within(receiver.close()).await?;
            return Ok(());
        }
        let mut sender = self.sender.lock().await;
        *sender = Some(self.attach_sender().await?);
        Ok(())
    }

    /// Opens a sender.
    pub(super) async fn attach_sender(&self) -> Result<OpenSender, Error> {
        let mut tries = ATTACH_TRIES;
        loop {
            match self.try_attach_sender().await {
                Err(error) if failure::is_collision(&error) && tries > 0 => tries -= 1,
                attached => return attached,
            }
            tokio::time::sleep(COLLISION_PAUSE).await;
        }
    }

    async fn try_attach_sender(&self) -> Result<OpenSender, Error> {
        let live = self.connection.authorized(self.address()).await?;
        let mut session = live.session.lock().await;
        let attach = Sender::builder()
            .name(self.connection.link_name(self.address()))
            .target(self.address())
            .sender_settle_mode(SenderSettleMode::Unsettled)
            .attach(&mut session);
        let sender = live.within(attach).await?;
        let sender = sender.map_err(|error| failure::of_queue(self.address(), &error))?;
        drop(session);
        Ok(OpenSender { live, sender })
    }

    /// Opens a receiver without credit.
    pub(super) async fn receiver(&self) -> Result<(Arc<OpenConnection>, Receiver), Error> {
        let mut tries = ATTACH_TRIES;
        loop {
            match self.try_receiver().await {
                Err(error) if failure::is_collision(&error) && tries > 0 => tries -= 1,
                attached => return attached,
            }
            tokio::time::sleep(COLLISION_PAUSE).await;
        }
    }

    async fn try_receiver(&self) -> Result<(Arc<OpenConnection>, Receiver), Error> {
        let live = self.connection.authorized(self.address()).await?;
        let mut session = live.session.lock().await;
        let attach = Receiver::builder()
            .name(self.connection.link_name(self.address()))
            .source(self.address())
            .sender_settle_mode(SenderSettleMode::Unsettled)
            .receiver_settle_mode(ReceiverSettleMode::First)
            .credit_mode(CreditMode::Manual)
            .attach(&mut session);
        let receiver = live.within(attach).await?;
        let receiver = receiver.map_err(|error| failure::of_queue(self.address(), &error))?;
        drop(session);
        Ok((live, receiver))
    }

    /// Sends a management request. Returns an error unless it was executed.
    pub(super) async fn request(
        &self,
        request: ManagementRequest,
    ) -> Result<ManagementResponse, Error> {
        let mut known = self.manager.lock().await;
        // Taken out: a client whose caller stopped waiting would give the response to the next one.
        let mut open = known.take().filter(|(live, _)| live.is_up());
        let response = loop {
            let is_old = open.is_some();
            let (live, mut manager) = match open.take() {
                Some(open) => open,
                None => self.attach_manager().await?,
            };
            match live.within(manager.call(request.clone())).await? {
                Ok(response) => {
                    *known = Some((live, manager));
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

    async fn attach_manager(&self) -> Result<(Arc<OpenConnection>, MgmtClient), Error> {
        let mut tries = ATTACH_TRIES;
        loop {
            match self.try_attach_manager().await {
                Err(error) if failure::is_collision(&error) && tries > 0 => tries -= 1,
                attached => return attached,
            }
            tokio::time::sleep(COLLISION_PAUSE).await;
        }
    }

    async fn try_attach_manager(&self) -> Result<(Arc<OpenConnection>, MgmtClient), Error> {
        let live = self.connection.authorized(self.address()).await?;
        let mut session = live.session.lock().await;
        let attach = MgmtClient::builder()
            .management_node_address(format!("{}/$management", self.address()))
            .client_node_addr(self.connection.link_name(self.address()))
            .attach(&mut session);
        let manager = live.within(attach).await?;
        let manager = manager.map_err(|error| failure::of_queue(self.address(), &error))?;
        drop(session);
        Ok((live, manager))
    }
}
