//! [`BusConnection`]: the connection to a namespace, which is opened when it is needed and reopened
//! when it is lost. Each entity is authorised with a token, which is renewed before it expires.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex as Lock, PoisonError};
use std::time::Duration;

use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::sasl_profile::SaslProfile;
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::types::primitives::Timestamp as AmqpTimestamp;
use fe2o3_amqp::{Connection, Session};
use fe2o3_amqp_cbs::client::CbsClient;
use fe2o3_amqp_cbs::token::CbsToken;
use fe2o3_amqp_ws::WebSocketStream;
use sluicegate_core::time::Clock as _;
use sluicegate_core::{Span, Timestamp};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};
use tracing::warn;

use super::credential::{AccessToken, Credential};
use super::failure::{self, unavailable};
use super::namespace::{Options, Transport};
use super::web_client::WebClient;
use crate::shared_connection::SharedConnection;
use crate::{Error, WallClock};

/// Timeout of an operation.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);
/// Idle time after which the connection counts as lost, in milliseconds.
const IDLE_MS: u32 = 60_000;
const FRAME_MAX: u32 = 65_536;
/// Shortest time between two renewals of a token.
const RENEWAL_MIN: Duration = Duration::from_secs(1);

/// A stream of bytes: TCP, TLS or WebSockets.
trait ByteStream: AsyncRead + AsyncWrite + std::fmt::Debug + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + std::fmt::Debug + Send + Unpin> ByteStream for S {}

pub(super) struct BusConnection {
    pub(super) options: Options,
    pub(super) web: WebClient,
    tls: ClientConfig,
    current: SharedConnection<OpenConnection>,
    /// The token of an Entra identity, which is valid for all entities, and when it has to be renewed.
    entra_token: Mutex<Option<(AccessToken, Timestamp)>>,
    /// Number of links that were opened, which makes their names unique.
    links: AtomicU64,
}

/// An open connection.
pub(super) struct OpenConnection {
    connection: Mutex<ConnectionHandle<()>>,
    /// Entities that are authorised, and when their token has to be renewed.
    authorized: Lock<HashMap<String, Timestamp>>,
    /// True if an operation had no answer in time.
    is_stuck: AtomicBool,
}

/// A link, or the two links of a client, in its own session. When Service Bus refuses a link, the
/// AMQP library closes that link late. By then its number may belong to the next link of the same
/// session, which would be closed instead, or with it the whole connection.
pub(super) struct OpenLink<L> {
    pub(super) live: Arc<OpenConnection>,
    // The link is dropped before its session.
    pub(super) link: L,
    pub(super) session: SessionHandle<()>,
}

impl BusConnection {
    pub(super) fn new(options: Options) -> Result<Self, Error> {
        let tls = tls()?;
        let (web, current) = (WebClient::new(tls.clone()), SharedConnection::new());
        let (entra_token, links) = (Mutex::default(), AtomicU64::new(0));
        Ok(Self { options, web, tls, current, entra_token, links })
    }

    /// Returns the open connection, or connects.
    pub(super) async fn open(self: &Arc<Self>) -> Result<Arc<OpenConnection>, Error> {
        self.current.open(OpenConnection::is_up, self.connect()).await
    }

    /// Returns a name for a new link.
    pub(super) fn link_name(&self, address: &str) -> String {
        let number = self.links.fetch_add(1, Ordering::Relaxed);
        format!("sluicegate-{}-{number}-{address}", std::process::id())
    }

    /// Returns the connection with a valid token for an entity.
    pub(super) async fn authorized(
        self: &Arc<Self>,
        entity: &str,
    ) -> Result<Arc<OpenConnection>, Error> {
        let live = self.open().await?;
        if !live.authorized().contains_key(entity) {
            let renewal = self.authorize(&live, entity).await?;
            live.authorized().insert(entity.to_owned(), renewal);
            self.keep_authorized(&live, entity.to_owned());
        }
        Ok(live)
    }

    /// Returns a token for an entity, and the time at which it has to be renewed: after three quarters
    /// of its lifetime.
    pub(super) async fn token(&self, audience: &str) -> Result<(AccessToken, Timestamp), Error> {
        let (credential, lifetime) = (&self.options.credential, self.options.token_lifetime);
        let now = WallClock.now();
        let fresh = async {
            let token = credential.token(audience, lifetime, &self.web).await?;
            let left = token.expires.since(now).as_micros();
            Ok((token, now + Span::from_micros(left / 4 * 3)))
        };
        if !matches!(credential, Credential::Entra(_)) {
            return fresh.await;
        }
        let mut known = self.entra_token.lock().await;
        match &*known {
            Some((token, renewal)) if *renewal > now => Ok((token.clone(), *renewal)),
            _ => Ok(known.insert(fresh.await?).clone()),
        }
    }

    /// Returns the audience of the token for an entity.
    pub(super) fn audience(&self, entity: &str) -> String {
        format!("sb://{}/{entity}", self.options.host)
    }

    /// Sends a token for an entity. Returns the time at which it has to be renewed.
    async fn authorize(&self, live: &OpenConnection, entity: &str) -> Result<Timestamp, Error> {
        let audience = self.audience(entity);
        let (token, renewal) = self.token(&audience).await?;
        let expires = AmqpTimestamp::from((token.expires.as_micros() / 1_000) as i64);
        let cbs_token = CbsToken::new(token.value, token.kind, expires);
        // A link of its own: Service Bus closes links that are not used for ten minutes.
        let name = self.link_name("cbs");
        let mut session = live.begin_session().await?;
        let attach = CbsClient::builder().client_node_addr(name).attach(&mut session);
        let attached = live.within(attach).await?;
        let mut client = attached.map_err(|error| unavailable(error.to_string()))?;
        let sent = live.within(client.put_token(audience, cbs_token)).await?;
        let _ = live.within(client.close()).await?;
        sent.map_err(|error| failure::of_token(&error))?;
        Ok(renewal)
    }

    /// Renews the token of an entity until the connection is closed. Service Bus closes the links of
    /// an entity whose token has expired.
    fn keep_authorized(self: &Arc<Self>, live: &Arc<OpenConnection>, entity: String) {
        let (connection, live) = (Arc::downgrade(self), Arc::downgrade(live));
        tokio::spawn(async move {
            loop {
                let Some(renewal) = live.upgrade().and_then(|live| {
                    let renewal = live.authorized().get(&entity).copied();
                    renewal.filter(|_| live.is_up())
                }) else {
                    return;
                };
                let wait = Duration::from(renewal.since(WallClock.now()));
                tokio::time::sleep(wait.max(RENEWAL_MIN)).await;
                let (Some(connection), Some(live)) = (connection.upgrade(), live.upgrade()) else {
                    return;
                };
                match connection.authorize(&live, &entity).await {
                    Ok(renewal) => drop(live.authorized().insert(entity.clone(), renewal)),
                    // The next link asks for a token again, and reports what is wrong.
                    Err(error) => warn!(entity, %error, "token not renewed"),
                }
            }
        });
    }

    async fn connect(&self) -> Result<OpenConnection, Error> {
        let place = format!("{}:{}", self.options.host, self.options.amqp_port());
        let connecting = async {
            let stream = self.stream(&place).await?;
            let lost = |error: &dyn std::fmt::Display| unavailable(format!("{place}: {error}"));
            let name = format!("sluicegate-{}", uuid::Uuid::new_v4());
            let connection = Connection::builder()
                .container_id(name)
                .hostname(Some(self.options.host.as_str()))
                .sasl_profile(SaslProfile::Anonymous)
                .max_frame_size(FRAME_MAX)
                .idle_time_out(IDLE_MS)
                .open_with_stream(stream);
            let connection = connection.await.map_err(|error| lost(&error))?;
            Ok(OpenConnection {
                connection: Mutex::new(connection),
                authorized: Lock::default(),
                is_stuck: AtomicBool::new(false),
            })
        };
        match tokio::time::timeout(REPLY_TIMEOUT, connecting).await {
            Ok(outcome) => outcome,
            Err(_) => Err(unavailable(format!(
                "timeout while connecting to {place}: check the namespace and the network; \
                 queue.transport: websockets uses port 443"
            ))),
        }
    }

    /// Opens the stream of bytes below the AMQP protocol.
    async fn stream(&self, place: &str) -> Result<Box<dyn ByteStream>, Error> {
        let Options { host, transport, emulator, .. } = &self.options;
        let unreachable = |error: &dyn std::fmt::Display| {
            unavailable(format!(
                "can't connect to {place} ({error}): check the namespace in \
                 queue.connection_string or queue.namespace, and the network"
            ))
        };
        let tcp = TcpStream::connect(place).await.map_err(|error| unreachable(&error))?;
        // Without this, small frames wait for the acknowledgement of earlier ones.
        tcp.set_nodelay(true).map_err(|error| unreachable(&error))?;
        let stream: Box<dyn ByteStream> = if *emulator {
            Box::new(tcp)
        } else {
            let name = ServerName::try_from(host.clone()).map_err(|error| unreachable(&error))?;
            let connector = TlsConnector::from(Arc::new(self.tls.clone()));
            Box::new(connector.connect(name, tcp).await.map_err(|error| {
                match error.to_string().contains("certificate") {
                    true => unavailable(format!(
                        "can't verify the certificate of {place} ({error}): set SSL_CERT_FILE to a \
                         file with the certificate of its authority"
                    )),
                    false => unreachable(&error),
                }
            })?)
        };
        if *transport == Transport::Tcp {
            return Ok(stream);
        }
        let scheme = if *emulator { "ws" } else { "wss" };
        let url = format!("{scheme}://{place}/$servicebus/websocket");
        let sockets = WebSocketStream::connect_with_stream(url, stream).await;
        Ok(Box::new(sockets.map_err(|error| unreachable(&error))?))
    }
}

impl OpenConnection {
    /// Returns true if the connection was not lost.
    pub(super) fn is_up(&self) -> bool {
        // It is locked only while a session is begun, which fails if it is closed.
        let is_closed = self.connection.try_lock().is_ok_and(|connection| connection.is_closed());
        !is_closed && !self.is_stuck.load(Ordering::Relaxed)
    }

    /// Begins a session for a link.
    pub(super) async fn begin_session(&self) -> Result<SessionHandle<()>, Error> {
        let begin = async { Session::begin(&mut *self.connection.lock().await).await };
        self.within(begin).await?.map_err(|error| unavailable(error.to_string()))
    }

    /// Runs an operation with a timeout, after which the connection counts as lost.
    pub(super) async fn within<T>(&self, operation: impl Future<Output = T>) -> Result<T, Error> {
        tokio::time::timeout(REPLY_TIMEOUT, operation).await.map_err(|_| {
            self.is_stuck.store(true, Ordering::Relaxed);
            unavailable("timeout")
        })
    }

    fn authorized(&self) -> std::sync::MutexGuard<'_, HashMap<String, Timestamp>> {
        self.authorized.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a TLS configuration with the certificate authorities of the system.
fn tls() -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| Error::Invalid(format!("TLS: {error}")))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
